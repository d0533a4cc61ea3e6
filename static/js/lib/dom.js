// Small things that every page script needs.
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with properties and children; text is never parsed as HTML. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "dataset") Object.assign(node.dataset, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Writes text only where it changed: screen readers and selections stay undisturbed. */
export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

export function jsonScript(id) {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
}

/** Runs `paint` once per frame however often it is asked. */
export function framed(paint) {
  let asked = 0;
  return () => {
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; paint(); });
  };
}

/** True where a key press belongs to a field, not to the page. */
export function inField(target) {
  return target instanceof Element && Boolean(target.closest("input:not([type=checkbox],[type=radio],[type=range]), textarea, select, [contenteditable]"));
}

/** Pixels that a drawing has in `root`, so that its words keep their size; within [least, most]. */
export const roomIn = (root, least = 320, most = 960) => Math.round(Math.min(most, Math.max(least, root.getBoundingClientRect().width || 720)));
