"""Records from final weights alone (papers 003, 004): weights as a sum of gradients at records."""
