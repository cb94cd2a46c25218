// Predictions of a classifier: draws, their mean, and the doubt that is left, as vnd.runtime computes them.

import { normal } from "#noise";

export class Classifier {
  /** A network that was exported, and what its page tells of it. */
  constructor(network, facts) {
    Object.assign(this, { network, facts });
  }

  /** The noise of so many draws of one picture: NumPy's, of a seed. */
  noise(seed, samples) {
    if (this.held?.seed !== seed || this.held.samples !== samples) {
      this.held = { seed, samples, values: normal(seed, samples * this.facts.columns) };
    }
    return this.held.values;
  }

  /** Probabilities of each draw; of 0 samples, those of the posterior means. */
  async draws(image, number, samples, seed) {
    const { input, columns, shared, numbered } = this.facts;
    const shape = this.facts.image, count = columns ? samples : 0;
    const own = numbered ? { width: number } : {};
    const given = (rows, noise) => {
      const repeated = new Float32Array(rows * image.length);
      for (let row = 0; row < rows; row++) repeated.set(image, row * image.length);
      return { [input]: [repeated, [rows, ...shape]], ...own, ...(noise ? { noise } : {}) };
    };
    if (!count) return this.#linked(await this.network.first(given(1, columns ? [new Float32Array(0), [1, 0]] : null)));
    const noise = this.noise(seed, count);
    if (!shared) return this.#linked(await this.network.first(given(count, [noise, [count, columns]])));
    const found = [];
    for (let draw = 0; draw < count; draw++) {
      const part = noise.subarray(draw * columns, (draw + 1) * columns);
      found.push(...this.#linked(await this.network.first(given(1, [part, [1, columns]]))));
    }
    return found;
  }

  /** {draws, probs, entropy}, in nats. */
  async predict(image, number, samples, seed) {
    const draws = await this.draws(image, number, samples, seed);
    const probs = draws[0].map((_, index) => draws.reduce((sum, draw) => sum + draw[index], 0) / draws.length);
    const entropy = probs.reduce((sum, p) => sum - (p > 0 ? p * Math.log(p) : 0), 0);
    return { draws, probs, entropy };
  }

  /** Rows of outputs after the link. */
  #linked({ data, dims }) {
    const [rows, classes] = dims;
    return Array.from({ length: rows }, (_, row) => {
      const logits = Array.from(data.subarray(row * classes, (row + 1) * classes));
      const largest = Math.max(...logits);
      const excess = this.facts.link === "dirichlet" ? Math.max(largest - 10, 0) : largest;
      const least = this.facts.link === "dirichlet" ? 0.01 : 0;
      const powers = logits.map((x) => least + Math.exp(x - excess));
      const total = powers.reduce((sum, x) => sum + x, 0);
      return powers.map((x) => x / total);
    });
  }
}
