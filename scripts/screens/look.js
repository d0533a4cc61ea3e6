// What the camera asks a page: evaluated as an object of functions.
({
  /** Things to press that are lower than a finger is wide; links within text are exempt. */
  small() {
    const least = 40;
    const inText = (e) => e.matches("a, .link-button") && e.closest("td, dd, li, p, h3, label, .crumb, .legend");
    const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(".visually-hidden, .skip");
    const name = (e) => `${e.tagName.toLowerCase()}.${e.className} "${(e.textContent || e.name || "").trim().slice(0, 30)}"`;
    return [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
      .filter((e) => shown(e) && !inText(e) && !e.closest("label"))
      .map((e) => [e, (e.closest(".segmented") ?? e).getBoundingClientRect()]) // the frame of a group belongs to it
      .filter(([, box]) => box.width && box.height && box.height < least - 0.5)
      .map(([e, box]) => `${Math.round(box.height)} px high: ${name(e)}`)
      .slice(0, 6);
  },

  /** Text that its box cuts off without a title that has the whole. */
  clipped() {
    const skipped = ".visually-hidden, pre, code, .log, .js-plotly-plot, svg, .table-wrap, input, select, textarea";
    return [...document.querySelectorAll("main *, .nav *")]
      .filter((e) => !e.children.length && e.textContent.trim() && !e.title && !e.closest(skipped))
      .filter((e) => e.checkVisibility({ visibilityProperty: true }) && e.clientWidth > 1)
      .filter((e) => getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1)
      .map((e) => `cut off: "${e.textContent.trim().slice(0, 50)}"`)
      .slice(0, 6);
  },

  /** Send the form of the page with nothing right in it, past the checks of the browser. */
  botch() {
    const forms = [...document.querySelectorAll("main form")];
    const form = forms.find((each) => each.getAttribute("method") === "post" && each.querySelector(".field"));
    form.noValidate = true;
    for (const e of form.elements) {
      if (e.type === "number") { e.type = "text"; e.value = e.required ? "" : "-1"; }
      else if (e.type === "email") e.value = "not an address";
      else if (e.type === "checkbox") e.checked = false;
      else if (["text", "password", "search"].includes(e.type) || e.tagName === "TEXTAREA") e.value = "";
    }
    form.requestSubmit();
  },
})
