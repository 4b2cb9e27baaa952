"""The image classifiers of the F-LCB paper's studies, built from torch layers.

CIFAR-10 (Table 6, about 11.5 million parameters each): two multilayer perceptrons and
one with normalisation, a VGG-like network, ResNet-18. CIFAR-100 (Tables 3 and 5): ResNets
of depth 20 to 56, MobileNetV2 and ShuffleNetV2 at several widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

N_PIXELS = 3 * 32 * 32


def shallow_mlp(n_classes: int = 10, width: int = 4100) -> nn.Module:
    """Two linear layers; 12.64 million parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(N_PIXELS, width), nn.ReLU(), nn.Linear(width, n_classes))


def deep_mlp(n_classes: int = 10, width: int = 1154, *, normalised: bool = False) -> nn.Module:
    """Eight linear layers; 11.55 million parameters, 11.57 with batch normalisation."""
    layers: list[nn.Module] = [nn.Flatten()]
    n_inputs = N_PIXELS
    for _ in range(7):
        layers.append(nn.Linear(n_inputs, width))
        if normalised:
            layers.append(nn.BatchNorm1d(width))
        layers.append(nn.ReLU())
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(width, n_classes))


def _conv(n_in: int, n_out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out))


def vgg(n_classes: int = 10, hidden: int = 3936) -> nn.Module:
    """Ten 3x3 convolutions in five stages with pooling, one hidden layer; 11.47 million parameters."""
    layers: list[nn.Module] = []
    n_in = 3
    for n_out in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [_conv(n_in, n_out), nn.ReLU(inplace=True)]
            n_in = n_out
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, n_classes)]
    return nn.Sequential(*layers, *head)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or beside a 1x1 convolution where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(n_in, n_out, 3, stride), nn.ReLU(inplace=True), _conv(n_out, n_out))
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else _conv(n_in, n_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Sum of both ways."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(depths: Sequence[int], widths: Sequence[int], n_classes: int) -> nn.Module:
    """A 3x3 stem, stages of residual blocks (halving the image from the second on), a linear head."""
    layers: list[nn.Module] = [_conv(3, widths[0]), nn.ReLU(inplace=True)]
    n_in = widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            layers.append(ResidualBlock(n_in, width, 2 if stage and not block else 1))
            n_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, n_classes))


def resnet18(n_classes: int = 10) -> nn.Module:
    """ResNet-18 with a 3x3 stem; 11.17 million parameters."""
    return resnet((2, 2, 2, 2), (64, 128, 256, 512), n_classes)


def small_resnet(depth: int, n_classes: int = 100) -> nn.Module:
    """CIFAR ResNet of depth 6 n + 2 with widths 16, 32, 64 (He et al. 2016)."""
    blocks = (depth - 2) // 6
    return resnet((blocks,) * 3, (16, 32, 64), n_classes)


def _even(value: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor``, not more than a tenth below ``value``."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


class InvertedResidual(nn.Module):
    """Expand by a 1x1, filter depthwise, project by a 1x1 convolution (Sandler et al. 2018)."""

    def __init__(self, n_in: int, n_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        n_mid = n_in * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [_conv(n_in, n_mid, 1), nn.ReLU6(inplace=True)]
        layers += [_conv(n_mid, n_mid, 3, stride, n_mid), nn.ReLU6(inplace=True), _conv(n_mid, n_out, 1)]
        self.body = nn.Sequential(*layers)
        self.skips = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        """The block, added to its input where the shapes allow."""
        y: Tensor = self.body(x)
        return x + y if self.skips else y


def mobilenet_v2(width: float, n_classes: int = 100) -> nn.Module:
    """MobileNetV2 with the strides for 32x32 images (stem and first stages keep the size)."""
    plan = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    n_in = _even(32 * width)
    layers: list[nn.Module] = [_conv(3, n_in), nn.ReLU6(inplace=True)]
    for expansion, channels, count, stride in plan:
        n_out = _even(channels * width)
        for block in range(count):
            layers.append(InvertedResidual(n_in, n_out, 1 if block else stride, expansion))
            n_in = n_out
    last = _even(1280 * max(1.0, width))
    layers += [_conv(n_in, last, 1), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(last, n_classes))


class ShuffleBlock(nn.Module):
    """Half the channels pass a depthwise bottleneck, then channels are shuffled (Ma et al. 2018)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        half = n_out // 2
        self.splits = stride == 1
        n_body = half if self.splits else n_in
        self.body = nn.Sequential(
            _conv(n_body, half, 1),
            nn.ReLU(inplace=True),
            _conv(half, half, 3, stride, half),
            _conv(half, half, 1),
            nn.ReLU(inplace=True),
        )
        self.beside = (
            nn.Identity()
            if self.splits
            else nn.Sequential(_conv(n_in, n_in, 3, stride, n_in), _conv(n_in, half, 1), nn.ReLU(inplace=True))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Both halves, shuffled."""
        first, second = x.chunk(2, dim=1) if self.splits else (x, x)
        y = torch.cat((self.beside(first), self.body(second)), dim=1)
        n, channels, height, width = y.shape
        return y.view(n, 2, channels // 2, height, width).transpose(1, 2).reshape(n, channels, height, width)


def shufflenet_v2(width: float, n_classes: int = 100) -> nn.Module:
    """ShuffleNetV2 for 32x32 images; widths 0.5, 1.0 and 1.5."""
    widths = {0.5: (48, 96, 192, 1024), 1.0: (116, 232, 464, 1024), 1.5: (176, 352, 704, 1024)}[width]
    layers: list[nn.Module] = [_conv(3, 24), nn.ReLU(inplace=True)]
    n_in = 24
    for n_out, count in zip(widths[:3], (4, 8, 4), strict=True):
        for block in range(count):
            layers.append(ShuffleBlock(n_in, n_out, 1 if block else 2))
            n_in = n_out
    layers += [_conv(n_in, widths[3], 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(widths[3], n_classes))


CIFAR10: dict[str, Callable[[], nn.Module]] = {
    "ShallowMLP": shallow_mlp,
    "DeepMLP": deep_mlp,
    "DeepMLPNorm": lambda: deep_mlp(normalised=True),
    "VGG": vgg,
    "ResNet18": resnet18,
}

CIFAR100: dict[str, Callable[[], nn.Module]] = {
    "mobilenetv2_x1_4": lambda: mobilenet_v2(1.4),
    "mobilenetv2_x1_0": lambda: mobilenet_v2(1.0),
    "shufflenetv2_x1_5": lambda: shufflenet_v2(1.5),
    "mobilenetv2_x0_75": lambda: mobilenet_v2(0.75),
    "resnet56": lambda: small_resnet(56),
    "shufflenetv2_x1_0": lambda: shufflenet_v2(1.0),
    "resnet44": lambda: small_resnet(44),
    "mobilenetv2_x0_5": lambda: mobilenet_v2(0.5),
    "resnet32": lambda: small_resnet(32),
    "resnet20": lambda: small_resnet(20),
    "shufflenetv2_x0_5": lambda: shufflenet_v2(0.5),
}
