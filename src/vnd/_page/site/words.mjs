// Words and elements that all parts of the page make.

/** An element with attributes and children. */
export function tag(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const whole = new Intl.NumberFormat("en");

/** A whole number with commas. */
export const commas = (number) => whole.format(number);

/** A share in percent. */
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

/** Milliseconds, to three digits. */
export const ms = (time) => (time === undefined ? "…" : `${time < 10 ? time.toFixed(2) : time.toFixed(time < 100 ? 1 : 0)} ms`);
