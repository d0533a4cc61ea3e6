// The tabs of the run page; the address remembers the one that is open.
import { $, $$ } from "../lib/dom.js";

/** @param {(name: string) => void} shown  called whenever a tab has been opened */
export function bindTabs(shown) {
  const tabs = $$("[data-tab]");
  const show = (name) => {
    for (const tab of tabs) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      $(`#panel-${tab.dataset.tab}`).hidden = !chosen;
    }
    shown(name);
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => {
      show(tab.dataset.tab);
      history.replaceState(null, "", tab.dataset.tab === "watch" ? location.pathname : `#${tab.dataset.tab}`);
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
      event.preventDefault();
    });
  });
  const follow = () => { const wanted = location.hash.slice(1); if (tabs.some((tab) => tab.dataset.tab === wanted)) show(wanted); };
  addEventListener("hashchange", follow);
  follow();
  return { show };
}
