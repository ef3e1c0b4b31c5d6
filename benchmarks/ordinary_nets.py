"""Networks in a user's own file, for `ordinary_models`."""

import torch
from torch import nn


def bn_mlp():
    return nn.Sequential(
        nn.Linear(784, 1024),
        nn.BatchNorm1d(1024),
        nn.ReLU(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def dropout_mlp():
    return nn.Sequential(
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16, 2), Block(16, 32, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = self.blocks(torch.relu(self.bn(self.stem(x))))
        return {"logits": self.fc(x.mean((2, 3))), "features": x}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 48)
        self.layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.layer(self.embed(x.reshape(-1, 28, 28))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.rnn(x.reshape(-1, 28, 28))[0][:, -1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 400), nn.Linear(400, 100), nn.Linear(100, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))
