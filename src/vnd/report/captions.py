"""What the parts of the comparison's page are called and what their figures show."""

SUMMARY = (
    "The best number of a place is bold, where all are of one width. ± is half a 95 % interval over trainings from "
    "other seeds; with † over repeated evaluations of one training; a number without it was measured once."
)
WORDS = "What the numbers below mean, without the paper."
NOT_TEST = (
    "All numbers are of validation images, not of test images. Training kept what was best on them, and thresholds and "
    "temperatures were fitted on them: on new images the numbers may be worse."
)
# Heading and note, in the order of the page; `{other}` is the name of the out-of-domain data, `{split}` of the images.
PARTS = {
    "accuracy": (
        "Accuracy",
        "Higher is better. Left: at the same share of every layer. Right: at the same number of parameters, further "
        "left is smaller; hollow markers are learned shapes, where training decided how much of each layer stays. "
        "Bands and bars are 95 % intervals; a wide one may reach past the figure.",
    ),
    "ece": (
        "Can the confidence be believed?",
        "Expected calibration error: lower is better, 0 is perfect.",
    ),
    "nll": (
        "The price of wrong answers",
        "Negative log-likelihood: lower is better.",
    ),
    "auroc": (
        "Noticing unfamiliar images",
        "Of an image of its own kind and one of {other}, how often a network is less certain of the latter: higher is "
        "better, by chance 50 %.",
    ),
    "aupr": (
        "Noticing unfamiliar images: precision and recall",
        "Images of {other} are the ones to find: higher is better.",
    ),
    "efficiency": (
        "What small networks can do",
        "Each method at its smallest, beside the full network. Weight usage is the share of the parameters of the "
        "method's own full network; with a random mask each pass it is the mean ± standard deviation over masks.",
    ),
    "times": (
        "Time",
        "Training: of all networks that the method needs; N trainings where it needs one for each width. "
        "Testing: all {split} images once, at the full width. Times of different machines do not compare.",
    ),
    "lengths": (
        "How many units each layer keeps",
        "Probability that exactly so many of a layer's units are kept: grey, two laws of earlier work that are the "
        "same for every layer; blue, what training found, layer by layer.",
    ),
    "statistics": (
        "How many images BatchNorm's statistics need",
        "After a network is cut, its BatchNorm layers collect their statistics from training images again. A band "
        "reaches from the worst repeat to the best, on average over runs.",
    ),
    "correlation": (
        "Do small networks doubt the same images?",
        "Correlation of the uncertainties (predictive entropies) of two widths over all images: 1 where they doubt "
        "alike. Images of {other} are out of domain.",
    ),
    "selective": (
        "Answering only when sure",
        "A network that withholds its least certain answers makes fewer mistakes. Each curve is a width; further "
        "right is more answered, lower is fewer mistakes. The marker is the threshold fitted on validation images for "
        "the risk at the dotted line, measured on {split} images.",
    ),
    "cascade": (
        "Narrow networks first",
        "Every image is tried on a narrow network, and goes on to a wider one only where that is uncertain: accuracy "
        "against the mean cost, beside each size for itself. Further up and left is better.",
    ),
    "reliability": (
        "Confidence against accuracy",
        "Of the answers given with some confidence, how many were right; on the dotted line the two agree. Pale bars "
        "rest on too few images to tell.",
    ),
}
# What is added where a series has several trainings, which these figures do not average, or not all of them.
REPEATED = {
    "lengths": "Of several trainings from other seeds, the first is shown.",
    "correlation": "Of several trainings from other seeds, the mean is shown, of those with the sizes of the first.",
    "selective": "Of several trainings from other seeds, the curves are of the first; the numbers are means.",
    "cascade": "Of several trainings from other seeds, the first is shown.",
    "reliability": "Of several trainings from other seeds, the first is shown.",
}
# Of Markdown pages: before the table of methods and that of sizes; then headings and captions of figures.
BUDGET = (
    "Accuracy in % of {split} images, of the largest network of each method that has no more parameters than the head "
    "of the column says; in small, its parameters. Methods that learn the shapes of their networks are taken at "
    "learned shapes, others at the same share of every layer; a method with one training a size is one row. “Full” and "
    "what follows “Worst ECE” are of the full network. “Worst ECE” is the expected calibration error in % "
    "(pooled{bins}) of the size where it is largest, which is named. ± is half a 95 % interval (Student's t) over "
    "trainings from other seeds; without it, there is one. “Training” is one run, times the runs that a method needs "
    "for its sizes."
)
SIZES = (
    "Every size of {name} on the {split} images; all but NLL (nats) in %, AUROC and AUPR against “{other}”. AURC is "
    "the mean risk over all shares of answers withheld. Where a plain network of the same shape was trained for "
    "itself, its accuracy is beside it, and by how many points the row is better."
)
OVER = {
    "accuracy": (
        "Accuracy over parameters",
        "Higher is better, further left is smaller. Hollow markers are learned shapes; bands and bars are 95 % "
        "intervals over seeds, and a wide one may reach past the figure.",
    ),
    "ece": (
        "Calibration error over parameters",
        "Expected calibration error: lower is better, 0 is perfect. TS is temperature scaling, fitted for each size.",
    ),
    "nll": (
        "Negative log-likelihood over parameters",
        "The price of wrong answers, the higher the surer they were: lower is better.",
    ),
    "auroc": (
        "Noticing unfamiliar images, over parameters",
        "Of an image of its own kind and one of {other}, how often a network is less certain of the latter: higher is "
        "better, by chance 50 %.",
    ),
}
SURVIVAL = (
    "What the network learned to keep",
    "Each cell is one unit of a layer of {name}, of its first run. Bright units stay even in small networks, dark ones "
    "are the first to go.",
)
THEORY = {
    "downhill": (
        "The law behind it: ordered masks",
        "A mask says how much of each unit is kept, and falls from the first unit to the last. Top: samples of the "
        "Downhill distribution; at a low temperature each is a clear cliff, at a high one a slope, from which "
        "training can tell which unit to move. Bottom: how probable each length is, under two fixed laws and two such "
        "as a layer may learn.",
    ),
    "kl": (
        "The price of a certain weight",
        "A Bayesian weight pays for being certain. Left: the exact price (KL from the log-uniform prior) and three "
        "approximations, each with its smallest value at 0. Right: how far each is from the exact one, matched where "
        "the noise is small. The paper's is smallest at log α ≈ 1, so that noise stays finite; sparse variational "
        "dropout has no such place and lets weights drown in noise; variational dropout holds for α ≤ 1 only.",
    ),
}
