// A form with data-confirm asks first. Without a script the server's own confirmation page, or the form, does it.
//   <form data-confirm="What will be gone." data-confirm-title="Remove ada?" data-confirm-label="Remove ada">
import { $ } from "./dom.js";

export function initConfirm() {
  const dialog = $("#confirm");
  if (!dialog) return;
  let waiting = null, sender = null;

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm === undefined || form === waiting) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    waiting = form;
    sender = event.submitter;
    $("#confirm-title").textContent = form.dataset.confirmTitle || "Are you sure?";
    $("#confirm-text").textContent = form.dataset.confirm;
    $("[data-confirm-yes]", dialog).textContent = form.dataset.confirmLabel || sender?.textContent.replace("…", "") || "Go on";
    dialog.showModal();
    $("[data-confirm-no]", dialog).focus();
  }, true);
  $("[data-confirm-yes]", dialog).addEventListener("click", () => {
    const form = waiting, button = sender;
    form.requestSubmit(button?.form === form ? button : undefined);
    dialog.close();
  });
  $("[data-confirm-no]", dialog).addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => { waiting = null; sender = null; });
}
