// The socket of a run: snapshot, then events by seq; a gap asks for a snapshot; polling where sockets are blocked.
const POLL_MS = 5_000, FIRST_WAIT_MS = 1_000, LONGEST_WAIT_MS = 30_000, SILENT_MS = 45_000, POLL_AFTER_FAILURES = 2;

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
    this.over = false;
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    this.socket.addEventListener("open", () => { this.heardAt = Date.now(); });
    this.socket.addEventListener("message", (event) => this.#receive(JSON.parse(event.data)));
    this.socket.addEventListener("close", (event) => this.#closed(event));
    this.watch ??= setInterval(() => this.#check(), 1_000);
    addEventListener("online", () => this.retryNow(), { once: true });
  }

  retryNow() {
    if (this.socket.readyState !== WebSocket.CLOSED) return;
    clearTimeout(this.timer);
    this.open();
  }

  #receive(message) {
    this.heardAt = Date.now();
    this.failures = 0;
    this.state = "live";
    clearInterval(this.poller);
    this.poller = null;
    this.#take(message);
  }

  #take(message) {
    if (message.type === "snapshot") this.seq = message.seq;
    else if (message.type === "events") {
      if (this.seq === null || message.seq <= this.seq) return;
      if (message.seq !== this.seq + 1) { this.resync(); return; }
      this.seq = message.seq;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  resync() {
    this.seq = null;
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resync" }));
  }

  #closed(event) {
    this.seq = null;
    // 4401/4403/4404: the server will not have us; asking again changes nothing.
    if (event.code >= 4400 && event.code < 4500) { this.state = "refused"; this.#tell(); return; }
    this.failures++;
    this.state = "offline";
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
    try {
      const response = await fetch(this.liveUrl, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (!response.ok) throw new Error(String(response.status));
      this.heardAt = Date.now();
      this.state = "polling";
      this.#take(await response.json());
    } catch {
      this.state = "offline";
    }
    this.#tell();
  }

  // A socket can die without a word: pings come every 20 s.
  #check() {
    if (this.socket.readyState === WebSocket.OPEN && Date.now() - this.heardAt > SILENT_MS) this.socket.close();
    this.#tell();
  }

  #tell() { this.dispatchEvent(new Event("state")); }
}
