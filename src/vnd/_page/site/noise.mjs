// Standard normal numbers as NumPy draws them: `normal(seed, n)` is default_rng(seed).standard_normal(n, "float32").
// A seed becomes a state by NumPy's SeedSequence, PCG64 (XSL-RR, 128 bits) gives the bits, and a ziggurat of 256 layers
// makes normal numbers of them. So the page and `vnd.runtime` draw the same numbers for the same seed.

const MASK128 = (1n << 128n) - 1n;
const FACTOR = 0x2360ed051fc65da44385df649fccf645n;
const EDGE = 3.6541528853610088; // where the tail of the normal density begins
const AREA = 0.00492867323399; // of each layer under it

/** Four words of 64 bits that NumPy's SeedSequence makes of a whole number below 2³². */
function entropyOf(seed) {
  let constant = 0x43b0d7e5;
  const hashed = (word) => {
    word = (word ^ constant) >>> 0;
    constant = Math.imul(constant, 0x931e8875) >>> 0;
    word = Math.imul(word, constant) >>> 0;
    return (word ^ (word >>> 16)) >>> 0;
  };
  const mixed = (x, y) => {
    const word = (Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)) >>> 0;
    return (word ^ (word >>> 16)) >>> 0;
  };
  const pool = [seed >>> 0, 0, 0, 0].map(hashed);
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mixed(pool[to], hashed(pool[from]));
  }
  let other = 0x8b51f9dd;
  const words = Array.from({ length: 8 }, (_, index) => {
    let word = (pool[index % 4] ^ other) >>> 0;
    other = Math.imul(other, 0x58f38ded) >>> 0;
    word = Math.imul(word, other) >>> 0;
    return BigInt((word ^ (word >>> 16)) >>> 0);
  });
  return [0, 2, 4, 6].map((index) => words[index] | (words[index + 1] << 32n));
}

/** Words of 32 bits from PCG64, the lower half of each 64 bits first. */
function source(seed) {
  const [high, low, first, second] = entropyOf(seed);
  const add = ((((first << 64n) | second) << 1n) | 1n) & MASK128;
  const start = ((add + ((high << 64n) | low)) * FACTOR + add) & MASK128;
  // From here on in six digits of 22 bits, whose products are exact: BigInt is thirty times slower.
  const digits = (x) => [0n, 22n, 44n, 66n, 88n, 110n].map((shift) => Number((x >> shift) & 0x3fffffn));
  let [s0, s1, s2, s3, s4, s5] = digits(start);
  const [f0, f1, f2, f3, f4, f5] = digits(FACTOR);
  const [a0, a1, a2, a3, a4, a5] = digits(add);
  const unit = 2 ** 22, down = 2 ** -22;
  let waiting = -1;
  return () => {
    if (waiting >= 0) {
      const word = waiting;
      waiting = -1;
      return word;
    }
    let sum = s0 * f0 + a0, carry = Math.floor(sum * down);
    const n0 = sum - carry * unit;
    sum = s0 * f1 + s1 * f0 + a1 + carry;
    carry = Math.floor(sum * down);
    const n1 = sum - carry * unit;
    sum = s0 * f2 + s1 * f1 + s2 * f0 + a2 + carry;
    carry = Math.floor(sum * down);
    const n2 = sum - carry * unit;
    sum = s0 * f3 + s1 * f2 + s2 * f1 + s3 * f0 + a3 + carry;
    carry = Math.floor(sum * down);
    const n3 = sum - carry * unit;
    sum = s0 * f4 + s1 * f3 + s2 * f2 + s3 * f1 + s4 * f0 + a4 + carry;
    carry = Math.floor(sum * down);
    const n4 = sum - carry * unit;
    sum = s0 * f5 + s1 * f4 + s2 * f3 + s3 * f2 + s4 * f1 + s5 * f0 + a5 + carry;
    carry = Math.floor(sum * down);
    s5 = (sum - carry * unit) & 0x3ffff; // the highest has 18 bits
    s0 = n0;
    s1 = n1;
    s2 = n2;
    s3 = n3;
    s4 = n4;
    const x0 = s0 | (s1 << 22), x1 = (s1 >>> 10) | (s2 << 12); // the state in words of 32 bits
    const x2 = (s2 >>> 20) | (s3 << 2) | (s4 << 24), x3 = (s4 >>> 8) | (s5 << 14);
    const turn = x3 >>> 26, by = turn & 31;
    const lower = turn < 32 ? x0 ^ x2 : x1 ^ x3, upper = turn < 32 ? x1 ^ x3 : x0 ^ x2;
    waiting = by ? ((upper >>> by) | (lower << (32 - by))) >>> 0 : upper >>> 0;
    return by ? ((lower >>> by) | (upper << (32 - by))) >>> 0 : lower >>> 0;
  };
}

/** Layers of the ziggurat: widths in units of 2⁻²³, bounds that need no second look, heights. */
function layers() {
  const density = (x) => Math.exp(-0.5 * x * x);
  const edges = new Float64Array(257);
  edges[256] = AREA / density(EDGE); // of the lowest layer, as wide as if it were a rectangle
  edges[255] = EDGE;
  for (let i = 254; i > 0; i--) edges[i] = Math.sqrt(-2 * Math.log(AREA / edges[i + 1] + density(edges[i + 1])));
  const scale = 2 ** 23;
  const widths = new Float32Array(256), bounds = new Uint32Array(256), heights = new Float32Array(256);
  for (let i = 1; i < 256; i++) {
    widths[i] = edges[i] / scale;
    bounds[i] = Math.floor((edges[i - 1] / edges[i]) * scale);
    heights[i] = density(edges[i]);
  }
  widths[0] = edges[256] / scale;
  bounds[0] = Math.floor((EDGE / edges[256]) * scale);
  heights[0] = 1;
  return { widths, bounds, heights };
}

const { widths, bounds, heights } = layers();
const float = Math.fround;

/** So many standard normal numbers of a seed. */
export function normal(seed, count) {
  const word = source(seed), found = new Float32Array(count);
  const uniform = () => float((word() >>> 8) / 16777216);
  const one = () => {
    for (;;) {
      const bits = word(), layer = bits & 0xff, size = (bits >>> 9) & 0x7fffff;
      const x = float(size * widths[layer]), signed = (bits >>> 8) & 1 ? -x : x;
      if (size < bounds[layer]) return signed;
      if (layer === 0) {
        for (;;) {
          const beyond = float(-float(1 / EDGE) * float(Math.log1p(-uniform())));
          const other = float(-Math.log1p(-uniform()));
          if (float(other + other) > float(beyond * beyond)) {
            const far = float(float(EDGE) + beyond);
            return (size >>> 8) & 1 ? -far : far;
          }
        }
      }
      const height = float(heights[layer - 1] - heights[layer]) * uniform() + heights[layer];
      if (float(height) < Math.exp(-0.5 * x * x)) return signed;
    }
  };
  for (let i = 0; i < count; i++) found[i] = one();
  return found;
}
