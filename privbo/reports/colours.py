"""Colours and dashes of lines, for every way a figure is drawn."""

# After Okabe and Ito, whom colour-blind readers can tell apart; the blue is lighter, for dark paper. Static figures
# name them by their place (style.css), where each has a shade that stands three to one above its paper.
COLOURS = ("#2b87c8", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
