"""The colours of all figures: those of Okabe and Ito (2008), and four more where there are ten classes.

Colour-blind readers tell the first six apart.
"""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#A6761D", "#808080", "#B5A400", "#8A6FE8")
