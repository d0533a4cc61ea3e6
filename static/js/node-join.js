// The command is shown once: going back or loading again leads to the node's own page, not to a second token.
const page = document.querySelector("[data-node-page]")?.dataset.nodePage;
if (page) history.replaceState(null, "", page);
