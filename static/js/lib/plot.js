// What plots of one value by iteration share: plotly's settings, and a layout with the site's tokens.

export const CONFIG = { displaylogo: false, showSendToCloud: false, responsive: true, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

/** A new layout every time, because plotly changes the one that it is given. @param t the tokens, @param y, x more of an axis */
export function layout(t, { x = {}, y = {}, height = 220 } = {}) {
  const axis = { gridcolor: t.grid, linecolor: t.rule2, zeroline: false, tickfont: { color: t.ink3, size: 11 }, nticks: 6, automargin: true };
  return {
    margin: { l: 44, r: 12, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x", height,
    font: { family: t.family, size: 11, color: t.ink3 }, hoverlabel: { bgcolor: t.bg, bordercolor: t.rule2, font: { color: t.ink, size: 12 } },
    xaxis: { ...axis, showgrid: false, tickformat: ",d", ...x }, yaxis: { ...axis, ...y }, uirevision: "keep",
  };
}

/** One line of points, or a mark where there is only one. */
export function line(x, y, { ink, dash = "solid", hover, name }) {
  return { x, y, name, type: "scatter", mode: x.length < 2 ? "markers" : "lines", line: { color: ink, width: 1.4, dash }, marker: { color: ink }, hovertemplate: hover };
}
