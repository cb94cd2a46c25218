// The view of an auto-encoder: a picture becomes a code, and comes back of as many of its numbers as are kept.

import { npy } from "#files";
import { normal } from "#noise";
import { paint } from "#picture";
import { milliseconds, open } from "#runtime";
import { commas, ms, tag } from "#words";

const FILMS = 8; // lengths that are shown side by side

export class View {
  constructor(facts) {
    this.facts = facts;
    this.stops = Array.from({ length: facts.length }, (_, index) => `${index + 1} of ${facts.length} numbers`);
    this.times = [];
    this.words = {
      heading: facts.ordered ? "One code, every length" : "A picture in a few numbers",
      lead:
        `${facts.ordered ? "Trained once, this" : "This"} network turns a picture into ${facts.length} numbers and back. ` +
        (facts.ordered ? "They are in order: the first says most. " : "") +
        "Drag the slider to the left to keep fewer of them, and see what is left of the picture.",
      size: "How many numbers are kept",
      sight: "The picture, and what comes back",
      stop: "Numbers of the code that are kept",
      least: "1 number",
      most: `all ${facts.length}`,
      note: "Each bar is a number of the code, as high as it is far from zero; pale ones are left out.",
      again: "Make one up",
      explained: [
        facts.ordered
          ? "In training, the numbers of a code were dropped from the end at random. So the first ones learn to say what matters " +
            "most, and every beginning of a code is a code, without training again."
          : "Its numbers were learned together, in no order: without some of them, the others may say little.",
        "“Make one up” draws a code from a normal distribution, by a seed; the same seed draws the same code in NumPy.",
        "All of this happens in this page. It sends nothing anywhere, your pictures neither.",
      ],
    };
  }

  async start() {
    this.encoder = await open("encoder.onnx");
    this.decoder = await open("decoder.onnx");
  }

  async measure() {
    const code = new Float32Array(this.facts.length);
    const [time] = await milliseconds([() => this.decode(code, this.facts.length)]);
    this.times = this.stops.map(() => time);
  }

  lay() {
    this.before = tag("canvas", { class: "large", role: "img", "aria-label": "the picture" });
    this.after = tag("canvas", { class: "large", role: "img", "aria-label": "what comes back" });
    this.captions = [tag("figcaption"), tag("figcaption")];
    this.films = tag("div", { class: "films" });
    const { length } = this.facts;
    const count = Math.min(FILMS, length);
    this.lengths = [...new Set(Array.from({ length: count }, (_, i) => Math.round(length ** (count < 2 ? 0 : i / (count - 1)))))];
    if (length <= FILMS) this.lengths = this.stops.map((_, index) => index + 1);
    this.shots = this.lengths.map((kept) => {
      const canvas = tag("canvas", { role: "img", "aria-label": `of ${kept} numbers` });
      const figure = tag("figure", {}, canvas, tag("figcaption", {}, String(kept)));
      this.films.append(figure);
      return { kept, canvas, figure };
    });
    this.place.append(
      tag("div", { class: "pair" }, tag("figure", {}, this.before, this.captions[0]), tag("figure", {}, this.after, this.captions[1])),
      tag("p", { class: "note" }, "Of so many numbers:"),
      this.films,
    );
  }

  /** Values (C, H, W) that the decoder gives for the first `length` numbers of a code. */
  async decode(code, length) {
    return (await this.decoder.first({ code: [code, [1, code.length]], length })).data;
  }

  async show({ stop, pixels, image, chosen, seed, drawn }) {
    const { length, image: shape } = this.facts;
    this.code = drawn
      ? normal(seed, length)
      : Float32Array.from((await this.encoder.first({ image: [image, [1, ...shape]] })).data);
    this.kept = stop + 1;
    this.decoded = Float32Array.from(await this.decode(this.code, this.kept));
    const back = this.bytes(this.decoded);
    this.before.parentNode.hidden = Boolean(drawn);
    paint(this.before, pixels, shape);
    paint(this.after, back, shape);
    this.captions[0].textContent = chosen.name;
    this.captions[1].textContent = `${drawn ? "made up" : "what comes back"}, of ${this.kept} number${this.kept > 1 ? "s" : ""}`;
    const squares = back.reduce((sum, value, index) => sum + ((value - pixels[index]) / 255) ** 2, 0);
    this.error = drawn ? null : squares / back.length;
    for (const { kept, canvas, figure } of this.shots) {
      paint(canvas, this.bytes(await this.decode(this.code, kept)), shape);
      figure.className = kept === this.kept ? "now" : "";
    }
    return { code: this.code, decoded: this.decoded };
  }

  /** Pixels of what the decoder gives. */
  bytes(values) {
    const { mean, std, logits, image } = this.facts, count = image[1] * image[2];
    return Uint8ClampedArray.from(values, (value, index) => {
      const channel = Math.floor(index / count);
      return 255 * (logits ? 1 / (1 + Math.exp(-value)) : value * (std?.[channel] ?? 1) + (mean?.[channel] ?? 0));
    });
  }

  figures({ stop }) {
    return [
      ["Kept", String(stop + 1), `of ${commas(this.facts.length)} numbers`],
      ["Error", this.error === null ? "–" : this.error.toFixed(4), "mean square, of shades from 0 to 1"],
      ["Time", ms(this.times[stop]), "to decode it, in your browser"],
    ];
  }

  bars({ stop }) {
    const most = Math.max(2.5, ...this.code.map(Math.abs));
    const rows = Array.from(this.code, (value, index) => ({
      height: Math.max(0.01, Math.abs(value) / most),
      lit: index <= stop,
      words: [String(index + 1), value.toFixed(2)],
    }));
    return { label: `The first ${stop + 1} of ${rows.length} numbers: ${rows.slice(0, stop + 1).map((row) => row.words[1]).join(", ")}`, rows };
  }

  python({ stop }) {
    const [, height, width] = this.facts.image, row = height >> 1, column = width >> 1;
    const shown = Array.from(this.decoded.subarray(row * width + column, row * width + column + 4), (x) => x.toFixed(4));
    return [
      `decoder = vnd.runtime.load("decoder.onnx")`,
      `code = numpy.load("code.npy")`,
      `decoder.decode(code, length=${stop + 1})[0, 0, ${row}, ${column}:${column + 4}]  # ${shown.join(", ")}`,
    ].join("\n");
  }

  files() {
    return [
      ["decoder.onnx", "Save decoder.onnx", () => this.decoder.bytes],
      ["code.npy", "Save code.npy", () => npy(this.code, [1, this.facts.length])],
    ];
  }
}
