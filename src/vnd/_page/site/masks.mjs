// The view of a probabilistic UNet: masks drawn for a picture, which fan out as far as they differ.

import { npy } from "#files";
import { normal } from "#noise";
import { paint } from "#picture";
import { milliseconds, open } from "#runtime";
import { ms, percent, tag } from "#words";

export class View {
  constructor(facts) {
    this.facts = facts;
    this.stops = Array.from({ length: facts.length }, (_, index) => `${index + 1} of ${facts.length} numbers`);
    this.times = [];
    this.words = {
      heading: "One picture, many masks",
      lead:
        `Where people would mark different things, this network draws ${facts.samples} masks, each of ${facts.length} random numbers. ` +
        (facts.ordered ? "The first ones matter most. " : "") +
        "Drag the slider: the more of them count, the more the masks may fan out.",
      size: "How many random numbers count",
      sight: "The picture, and its masks",
      stop: "Random numbers that count",
      least: "1 number",
      most: `all ${facts.length}`,
      note: "Each bar is a random number, as high as it varies for this picture; pale ones do not count.",
      again: "Draw again",
      explained: [
        "The picture is looked at once. Then each mask takes one draw of the random numbers, whose mean and spread the network " +
          "has chosen for this picture, and one cheap pass.",
        "The masks of the fan lie in the order of their size, and the fan is as wide as they differ: by one less the overlap of two, " +
          "on average. The draws come from a seed, and the same seed draws the same masks in Python.",
        "All of this happens in this page. It sends nothing anywhere, your pictures neither.",
      ],
    };
  }

  async start() {
    this.features = await open("masks-features.onnx");
    this.combine = await open("masks-combine.onnx");
  }

  async measure() {
    const { image } = this.facts;
    await this.look(new Float32Array(image[0] * image[1] * image[2]));
    this.times = await milliseconds(this.stops.map((_, index) => () => this.draw(index + 1, 0)));
  }

  lay() {
    this.large = tag("canvas", { class: "large", role: "img" });
    this.share = tag("canvas", { class: "large", role: "img", "aria-label": "share of the masks that mark each place" });
    this.caption = tag("figcaption");
    this.fan = tag("div", { class: "fan", role: "img" });
    this.cards = Array.from({ length: this.facts.samples }, () => this.fan.appendChild(tag("canvas")));
    const both = tag("figure", {}, this.share, tag("figcaption", {}, "how many of the masks mark a place"));
    this.place.append(tag("div", { class: "pair" }, tag("figure", {}, this.large, this.caption), both), this.fan);
  }

  /** What all masks of a picture have in common. */
  async look(image) {
    this.image = image;
    const { features, loc, scale } = await this.features.run({ image: [image, [1, ...this.facts.image]] });
    this.seen = Object.fromEntries(
      Object.entries({ features, loc, scale }).map(([name, { data, dims }]) => [name, [Float32Array.from(data), dims]]),
    );
  }

  /** Logits (samples, 1, K, H, W) of draws of a seed. */
  async draw(length, seed) {
    const { samples, length: whole } = this.facts;
    const noise = [normal(seed, samples * whole), [samples, 1, whole]];
    return (await this.combine.first({ ...this.seen, noise, length })).data;
  }

  async show({ stop, pixels, image, chosen, seed }) {
    const { image: shape, samples } = this.facts;
    if (this.image !== image) await this.look(image);
    this.logits = Float32Array.from(await this.draw(stop + 1, seed));
    const masks = this.masks(), sizes = masks.map((mask) => mask.reduce((sum, x) => sum + x, 0));
    const order = [...masks.keys()].sort((a, b) => sizes[a] - sizes[b]);
    this.differ = difference(masks);
    paint(this.large, pixels, shape);
    paint(this.share, pixels, shape, masks[0].map((_, at) => masks.reduce((sum, mask) => sum + mask[at], 0) / samples));
    this.large.setAttribute("aria-label", chosen.name);
    this.caption.textContent = chosen.kind === "like" ? "not among the training images" : chosen.name;
    order.forEach((which, index) => {
      paint(this.cards[index], pixels, shape, masks[which]);
      this.cards[index].style.setProperty("--place", index - (samples - 1) / 2);
    });
    this.fan.style.setProperty("--count", samples);
    this.fan.style.setProperty("--spread", Math.min(1, 0.06 + 1.4 * this.differ).toFixed(3));
    this.fan.setAttribute("aria-label", `${samples} masks; they mark ${sizes.sort((a, b) => a - b).join(", ")} pixels`);
    return { logits: this.logits };
  }

  /** Masks of the logits: 1 where one foreground is more likely than not, or any class but the background is. */
  masks() {
    const { samples, num_classes: classes, image } = this.facts, count = image[1] * image[2];
    return Array.from({ length: samples }, (_, draw) => {
      const start = draw * classes * count;
      return Float32Array.from({ length: count }, (_, at) => {
        const first = this.logits[start + at];
        if (classes === 1) return Number(first > 0);
        for (let k = 1; k < classes; k++) if (this.logits[start + k * count + at] > first) return 1;
        return 0;
      });
    });
  }

  figures({ stop }) {
    return [
      ["Count", String(stop + 1), `of ${this.facts.length} random numbers`],
      ["They differ by", percent(this.differ, 0), "one less the overlap of two masks"],
      ["Time", ms(this.times[stop]), `for ${this.facts.samples} masks, in your browser`],
    ];
  }

  bars({ stop }) {
    const scales = Array.from(this.seen.scale[0]), most = Math.max(...scales);
    const rows = scales.map((scale, index) => ({
      height: Math.max(0.01, scale / most),
      lit: index <= stop,
      words: [String(index + 1), `±${scale.toFixed(2)}`],
    }));
    return { label: `Spread of each number: ${rows.map((row) => row.words[1]).join(", ")}`, rows };
  }

  python({ stop, seed }) {
    const { samples, image, num_classes: classes } = this.facts, [, height, width] = image;
    const row = height >> 1, column = width >> 1, at = row * width + column;
    const shown = Array.from({ length: Math.min(4, samples) }, (_, draw) => this.logits[draw * classes * height * width + at].toFixed(4));
    return [
      `masks = vnd.runtime.load("masks.onnx")  # of masks-features.onnx and masks-combine.onnx`,
      `image = numpy.load("picture.npy")  # as the network is fed: ${["1", ...image].join(" × ")}`,
      `masks.draw(image, samples=${samples}, length=${stop + 1}, seed=${seed})[:4, 0, 0, ${row}, ${column}]  # ${shown.join(", ")}`,
    ].join("\n");
  }

  files() {
    return [
      ["masks-features.onnx", "Save masks-features.onnx", () => this.features.bytes],
      ["masks-combine.onnx", "Save masks-combine.onnx", () => this.combine.bytes],
      ["picture.npy", "Save picture.npy", () => npy(this.image, [1, ...this.facts.image])],
    ];
  }
}

/** One less the overlap, intersection over union, of two masks, the mean over all pairs; 0 of two empty ones. */
function difference(masks) {
  let sum = 0, pairs = 0;
  for (let i = 0; i < masks.length; i++) {
    for (let j = 0; j < i; j++, pairs++) {
      let both = 0, either = 0;
      masks[i].forEach((x, at) => ((both += x * masks[j][at]), (either += Math.max(x, masks[j][at]))));
      sum += either ? 1 - both / either : 0;
    }
  }
  return pairs ? sum / pairs : 0;
}
