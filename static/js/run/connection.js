// The socket of a run: snapshot, then events by seq; what was missed is asked for since the last seq; polling where
// sockets are blocked.
import { MESSAGE } from "../lib/wire.js";

const POLL_MS = 5_000, FIRST_WAIT_MS = 1_000, LONGEST_WAIT_MS = 30_000, SILENT_MS = 45_000, POLL_AFTER_FAILURES = 2, OPEN_WITHIN_MS = 8_000, GAP_MS = 1_500;

export class Connection extends EventTarget {
  constructor({ path, liveUrl }) {
    super();
    this.path = path;
    this.liveUrl = liveUrl;
    this.seq = null;
    this.failures = 0;
    this.state = "connecting";
    this.retryAt = 0;
    this.heardAt = 0;
    this.askedAt = 0;
  }

  /** What is on the page already: the server is asked only for what came after it. */
  begin(seq) { this.seq = Number.isInteger(seq) ? seq : null; }

  /** Asks for a new snapshot. */
  renew() {
    this.seq = null;
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resync" }));
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    this.socket = socket;
    this.openedAt = Date.now();
    socket.addEventListener("open", () => { if (socket === this.socket) this.#opened(); });
    socket.addEventListener("message", (event) => { if (socket === this.socket) this.#receive(JSON.parse(event.data)); });
    socket.addEventListener("close", (event) => { if (socket === this.socket) this.#closed(event); });
    if (this.watch) return;
    this.watch = setInterval(() => this.#check(), 1_000);
    addEventListener("online", () => this.retryNow());
    addEventListener("offline", () => this.#drop());
  }

  // Where nothing was missed the server has nothing to say until something happens.
  #opened() {
    this.heardAt = Date.now();
    if (this.seq === null) return;
    this.state = "live";
    this.#stopPolling();
    this.#ask();
    this.#tell();
  }

  retryNow() {
    if (this.socket || this.state === "refused") return;
    clearTimeout(this.timer);
    this.open();
  }

  // Without a network the closing handshake never ends, so its close event is not waited for.
  #drop() {
    if (!this.socket) return;
    this.socket.close();
    this.#closed({ code: 0 });
  }

  #receive(message) {
    this.heardAt = Date.now();
    this.failures = 0;
    this.state = "live";
    this.#stopPolling();
    this.#take(message);
    this.#tell();
  }

  #take(message) {
    if (message.type === MESSAGE.SNAPSHOT) this.seq = message.seq;
    else if (message.type === MESSAGE.EVENTS) {
      if (this.seq === null || message.seq <= this.seq) return;
      // What comes after a gap is dropped: the answer to the question brings it again.
      if (message.seq !== this.seq + 1) { if (Date.now() - this.askedAt > GAP_MS) this.#ask(); return; }
      this.seq = message.seq;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  // The server answers with the messages after `seq`, or with a snapshot where it no longer has them all.
  #ask() {
    this.askedAt = Date.now();
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "since", seq: this.seq }));
  }

  #closed(event) {
    this.socket = null;
    // 4401/4403/4404: the server will not have us; asking again changes nothing.
    if (event.code >= 4400 && event.code < 4500) { this.#refused(); return; }
    this.failures++;
    if (this.state !== "polling") this.state = "offline";
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (this.failures - 1));
    const wait = longest / 2 + Math.random() * (longest / 2);
    this.retryAt = Date.now() + wait;
    this.timer = setTimeout(() => this.open(), wait);
    if (this.failures >= POLL_AFTER_FAILURES && !this.poller) {
      this.poller = setInterval(() => this.#poll(), POLL_MS);
      this.#poll();
    }
    this.#tell();
  }

  async #poll() {
    if (this.polling) return;
    this.polling = true;
    try {
      const since = this.seq === null ? "" : `?since=${this.seq}`;
      const response = await fetch(this.liveUrl + since, { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(POLL_MS * 2) });
      if ([401, 403, 404].includes(response.status) || response.redirected) { this.#refused(); return; }
      if (!response.ok) throw new Error(String(response.status));
      const answer = await response.json();
      // While it was under way the socket may have come back: it knows better.
      if (this.state === "live") return;
      this.heardAt = Date.now();
      this.state = "polling";
      for (const message of answer.events ?? [answer]) this.#take(message);
    } catch {
      if (this.state !== "live") this.state = "offline";
    } finally {
      this.polling = false;
    }
    this.#tell();
  }

  #stopPolling() {
    clearInterval(this.poller);
    this.poller = null;
  }

  #refused() {
    this.state = "refused";
    this.#stopPolling();
    clearTimeout(this.timer);
    this.#tell();
  }

  // A socket can die without a word, while it opens (some proxies hold it for ever) and after: pings come every 20 s.
  #check() {
    const { socket } = this, now = Date.now();
    if (socket?.readyState === WebSocket.CONNECTING && now - this.openedAt > OPEN_WITHIN_MS) this.#drop();
    if (socket?.readyState === WebSocket.OPEN && now - this.heardAt > SILENT_MS) this.#drop();
    this.#tell();
  }

  #tell() { this.dispatchEvent(new Event("state")); }
}
