// The search runs in a worker, which browsers refuse to pages that are read from files. There it runs in a frame.
// The plugin `offline` knows this file by its name, and would fetch one from the network otherwise.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    script.src = url;
    this.loaded = new Promise((resolve) => (script.onload = resolve));
    inside.document.body.append(script);
  }

  postMessage(data) {
    const inside = this.frame.contentWindow;
    this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
