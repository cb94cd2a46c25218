// The view of a classifier: class bars with a tick for each draw, what it answers, and when it would rather not.

import { Classifier } from "#answer";
import { npy } from "#files";
import { paint } from "#picture";
import { milliseconds, open } from "#runtime";
import { commas, ms, percent, tag } from "#words";

const MOST = 12; // classes that are shown at a time

export class View {
  constructor(facts) {
    this.facts = facts;
    this.widths = facts.widths;
    this.stops = this.widths.map((width) => `${commas(width.parameters)} parameters`);
    this.times = [];
    const draws = facts.samples
      ? `Its weights are not numbers but distributions. Each answer is the mean over ${facts.samples} networks drawn from ` +
        `them; every tick is what one of them says. Where the ticks lie together it is sure, and where they scatter it is not. ` +
        `The draws come from a seed, and the same seed draws the same networks in Python.`
      : "";
    const rule = facts.rule
      ? `It answers only where its doubt, the entropy of the mean answer, is at most a threshold. On ` +
        `${commas(facts.rule.images)} validation images that it was not trained on, vnd.runtime.selective fitted one for each size, ` +
        `the largest at which at most ${percent(facts.rule.risk, 0)} of the answers given were wrong. Other kinds of pictures are ` +
        `not covered by that: it may be sure of one, and wrong.`
      : "";
    const several = this.widths.length > 1;
    const lead = several
      ? `Trained once${facts.data ? ` on ${facts.data}` : ""}, this network runs at ${this.widths.length} sizes. Drag the slider ` +
        "to the left: it gets smaller and faster. See how long its answers hold."
      : "This network runs in your browser.";
    this.words = {
      heading: several ? "One network, every size" : "A network in your browser",
      lead: lead + (facts.rule ? " Show it something that it does not know, and it would rather not say." : ""),
      size: several ? "How much of it runs" : "What it costs",
      sight: "What it sees, and what it says",
      stop: "Size of the network",
      least: several ? "smaller, faster" : "",
      most: several ? "larger" : "",
      note:
        (facts.layers.length ? "Each bar is a layer, lit as far as its channels are kept." : "") +
        (facts.learned ? " Training has learned which layers can spare most." : ""),
      again: facts.samples ? "Draw again" : "",
      explained: [
        several
          ? "The channels of each layer are in an order, and in training some were left out from its end at random. So the first " +
            "ones do without the rest, and the network can be cut at any of many sizes, without training again."
          : "",
        draws,
        rule,
        "All of this happens in this page. It sends nothing anywhere, your pictures neither.",
      ].filter(Boolean),
    };
  }

  async start() {
    this.network = await open("network.onnx");
    this.classifier = new Classifier(this.network, { ...this.facts.network, image: this.facts.image });
  }

  /** Time of one answer at each size, measured here. */
  async measure() {
    const image = new Float32Array(this.facts.image.reduce((a, b) => a * b));
    const { samples } = this.facts;
    this.times = await milliseconds(this.widths.map(({ number }) => () => this.classifier.predict(image, number, samples, 0)));
  }

  lay() {
    this.large = tag("canvas", { class: "large", role: "img" });
    this.caption = tag("figcaption");
    this.verdict = tag("div", { class: "verdict", "aria-live": "polite" }, tag("b"), tag("span"));
    this.list = tag("ul", { class: "classes", "aria-label": "Classes" });
    this.doubt = tag("div", { class: "line doubt", role: "img" }, tag("div", { class: "fill" }), tag("i"));
    const doubt = tag("ul", { class: "classes" }, tag("li", {}, tag("span", { class: "name" }, "Doubt"), this.doubt, tag("span", { class: "value" })));
    this.place.append(
      tag("div", { class: "seen" }, tag("figure", {}, this.large, this.caption), tag("div", {}, this.verdict, this.list, doubt)),
    );
  }

  async show({ stop, pixels, image, chosen, seed }) {
    const width = this.widths[stop];
    const answer = await this.classifier.predict(image, width.number, this.facts.samples, seed);
    this.answer = answer;
    this.image = image;
    paint(this.large, pixels, this.facts.image);
    this.large.setAttribute("aria-label", chosen.name);
    this.caption.textContent = told[chosen.kind](chosen, this.facts);
    const best = answer.probs.indexOf(Math.max(...answer.probs)), name = this.facts.classes[best];
    const given = !this.facts.rule || (width.threshold !== null && answer.entropy <= width.threshold);
    this.verdict.className = `verdict ${this.facts.rule ? (given ? "" : "withheld") : "plain"}`;
    const [first, second] = this.verdict.children;
    first.textContent = given ? name : "I would rather not say";
    second.textContent = this.reason(width, answer, given, name, percent(answer.probs[best], 0));
    this.ticks(answer, best);
    const most = Math.log(answer.probs.length), [fill, mark] = this.doubt.children;
    fill.style.width = `${(100 * answer.entropy) / most}%`;
    mark.hidden = !this.facts.rule || width.threshold === null;
    mark.style.left = `${(100 * Math.min(width.threshold ?? 0, most)) / most}%`;
    const limit = mark.hidden ? "" : `; it answers up to ${width.threshold.toFixed(2)}`;
    this.doubt.setAttribute("aria-label", `Doubt ${answer.entropy.toFixed(2)}${limit}`);
    this.doubt.nextSibling.textContent = answer.entropy.toFixed(2);
    return answer;
  }

  reason(width, answer, given, name, sure) {
    if (!this.facts.rule) return `${sure} sure`;
    if (width.threshold === null) return "No threshold kept the errors of this size as few as was asked.";
    const [own, limit] = [answer.entropy.toFixed(2), width.threshold.toFixed(2)];
    return given
      ? `${sure} sure. Its doubt, ${own}, is within its limit of ${limit}.`
      : `${name} at ${sure}, but its doubt, ${own}, is above its limit of ${limit}.`;
  }

  /** Rows of classes: the bar is the mean, a tick is a draw. */
  ticks({ draws, probs }, best) {
    const order = probs.map((_, index) => index);
    const shown = order.length > MOST ? order.sort((a, b) => probs[b] - probs[a]).slice(0, 8) : order;
    while (this.list.children.length < shown.length) {
      const line = tag("div", { class: "line", "aria-hidden": "true" }, tag("div", { class: "fill" }), ...draws.map(() => tag("i")));
      this.list.append(tag("li", {}, tag("span", { class: "name" }), line, tag("span", { class: "value" })));
    }
    shown.forEach((index, row) => {
      const [name, line, value] = this.list.children[row].children;
      const [fill, ...ticks] = line.children;
      name.textContent = name.title = this.facts.classes[index];
      name.classList.toggle("best", index === best);
      fill.style.width = `${100 * probs[index]}%`;
      value.textContent = percent(probs[index], 0);
      ticks.forEach((tick, draw) => (tick.hidden = draws.length < 2, tick.style.left = `${100 * draws[draw][index]}%`));
    });
  }

  figures({ stop }) {
    const width = this.widths[stop], whole = this.widths.at(-1);
    const kept = this.facts.layers.every(({ channels }, index) => channels === whole.kept[index]);
    const rows = [
      ["Parameters", commas(width.parameters), width === whole ? (kept ? "the whole network" : "the largest here") : `${percent(width.parameters / whole.parameters, 0)} of ${commas(whole.parameters)}`],
      ["Time", ms(this.times[stop]), "for an answer, in your browser"],
    ];
    if (width.accuracy !== null) rows.push(["Right", percent(width.accuracy), `of ${this.facts.accuracy_of}`]);
    return rows;
  }

  bars({ stop }) {
    const { kept } = this.widths[stop];
    const rows = this.facts.layers.map(({ name, channels }, index) => ({
      height: kept[index] / channels,
      lit: true,
      words: [`layer ${index + 1}`, `${kept[index]}/${channels}`],
      name,
    }));
    return { label: rows.map((row) => `${row.words[0]}: ${row.words[1]} channels`).join(", "), rows };
  }

  python({ stop, seed }) {
    const { numbered } = this.facts.network, { shape, number } = this.widths[stop];
    const width = numbered && shape ? `width=ready.widths[${number}]["shape"], ` : "";
    const draws = this.facts.samples ? `samples=${this.facts.samples}, seed=${seed}` : "samples=0";
    return [
      `ready = vnd.runtime.load("network.onnx")`,
      `image = numpy.load("picture.npy")  # as the network is fed: ${["1", ...this.facts.image].join(" × ")}`,
      `ready.predict(image, ${width}${draws}).probs.round(4)`,
      `# ${this.answer.probs.slice(0, 10).map((p) => p.toFixed(4)).join(", ")}${this.answer.probs.length > 10 ? " …" : ""}`,
    ].join("\n");
  }

  files() {
    return [
      ["network.onnx", "Save network.onnx", () => this.network.bytes],
      ["picture.npy", "Save picture.npy", () => npy(this.image, [1, ...this.facts.image])],
    ];
  }
}

const told = {
  like: ({ label }) => (label ? `It is: ${label}. Not among the training images.` : "Not among the training images."),
  unlike: ({ name }, { data }) => (data ? `${name}: not from its training data` : name),
  given: ({ name, label }) => (label ? `It is: ${label}.` : name),
  own: ({ name }) => `Yours: ${name}. It stays in your browser.`,
};
