// A table as a grid for the keyboard: one cell is in the tab order, arrows go from cell to cell, Home and End
// to the ends of a row.
import { $$ } from "./lib/dom.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function initGrid(grid) {
  const rows = $$("tbody tr", grid).map((row) => $$("td > *", row));
  if (!rows.length) return;
  rows.flat().forEach((cell) => { cell.tabIndex = -1; });
  rows[0][0].tabIndex = 0;

  const at = (cell) => {
    const row = rows.findIndex((cells) => cells.includes(cell));
    return [row, rows[row]?.indexOf(cell)];
  };
  function go(from, to) {
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
    to.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  grid.addEventListener("keydown", (event) => {
    const [row, column] = at(event.target);
    if (row < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    const next = step ? rows[row + step[0]]?.[column + step[1]]
      : event.key === "Home" ? rows[row][0] : event.key === "End" ? rows[row].at(-1) : null;
    if (!next) return;
    event.preventDefault();
    go(event.target, next);
  });
  grid.addEventListener("focusin", (event) => {
    const [row] = at(event.target);
    if (row < 0) return;
    rows.flat().forEach((cell) => { cell.tabIndex = cell === event.target ? 0 : -1; });
  });
}

const init = () => $$("[data-heatmap]:not([data-ready])").forEach((grid) => { grid.dataset.ready = ""; initGrid(grid); });
document.addEventListener("htmx:afterSettle", init);
init();
