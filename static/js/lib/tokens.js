// The colours of css/tokens.css as the browser resolves them now, for canvas and charts.
const NAMES = [
  "bg", "side", "hover", "sel", "rule", "rule2", "grid", "ctl", "ink", "ink2", "ink3", "ok", "warn", "err", "focus",
  "op-f", "op-r", "op-b", "op-w", "op-a", "op-p", "op-label", "bubble-line", "bubble-flat",
  "heat-0", "heat-1", "heat-2", "heat-3", "heat-4",
];

/** @returns {Record<string, string>} token name (op-f as opF) → rgb(…) */
export function readTokens() {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const tokens = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    tokens[name.replace(/-(\w)/g, (_, c) => c.toUpperCase())] = getComputedStyle(probe).color;
  }
  tokens.family = getComputedStyle(document.body).fontFamily;
  probe.remove();
  return tokens;
}

/** `color` (rgb(…) as readTokens gives it) with the opacity `alpha`, 0 to 1. */
export function withAlpha(color, alpha) {
  const channels = color.match(/[\d.]+/g).slice(0, 3).join(" ");
  return `rgb(${channels} / ${alpha})`;
}

/** One colour of the heat ramp for a share of 0 to 1. */
export function heatRamp(tokens) {
  const stops = [0, 1, 2, 3, 4].map((i) => tokens[`heat${i}`].match(/[\d.]+/g).slice(0, 3).map(Number));
  const steps = [];
  for (let i = 0; i <= 64; i++) {
    const at = (i / 64) * 4, low = Math.min(3, Math.floor(at)), part = at - low;
    const mix = stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * part));
    steps.push(`rgb(${mix.join(" ")})`);
  }
  return (share) => steps[Math.round(Math.min(1, Math.max(0, share)) * 64)];
}
