"""Solvers: explain evidence by inputs. They know nothing of data, truth or files."""
