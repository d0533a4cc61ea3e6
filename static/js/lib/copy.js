// Buttons that copy: data-copy (the text itself), data-copy-from (the id of what holds it), data-copy-document
// (a document to fetch and put behind data-copy-command). The button says that it did, or why it could not.
import { $ } from "./dom.js";

const SAID_MS = 2500;

async function write(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  // Without HTTPS there is no clipboard: a selection and the old command do it.
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused");
}

/** `meridian train run-12.json` with the document behind it, to paste into any shell. */
export const withDocument = (command, name, text) => `${command.replace(name, "-")} <<'DOCUMENT'\n${text.trim()}\nDOCUMENT\n`;

async function textOf(button) {
  const { copy, copyFrom, copyDocument, copyCommand, copyName } = button.dataset;
  if (copy !== undefined) return copy;
  if (copyFrom !== undefined) return document.getElementById(copyFrom).textContent;
  const answer = await fetch(copyDocument);
  if (!answer.ok) throw new Error(`the document: ${answer.status}`);
  return withDocument(copyCommand, copyName, await answer.text());
}

function say(button, text) {
  button.dataset.label ??= button.textContent;
  button.textContent = text;
  $("#said").textContent = text;
  clearTimeout(button.said);
  button.said = setTimeout(() => { button.textContent = button.dataset.label; $("#said").textContent = ""; }, SAID_MS);
}

export function initCopy() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy], [data-copy-from], [data-copy-document]");
    if (!button) return;
    try {
      await write(await textOf(button));
      say(button, "Copied");
    } catch (error) {
      say(button, `Not copied: ${error.message}`);
    }
  });
}
