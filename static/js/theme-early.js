// Loaded before the first paint, so that a theme chosen by hand does not flash.
(function () {
  try {
    const theme = localStorage.getItem("meridian.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage refused: the system's theme it is */ }
})();
