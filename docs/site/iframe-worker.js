// Browsers start no worker for a page that is a file. The search then runs in a hidden frame, which
// takes and sends the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => { script.onload = resolve; });
      frame.contentDocument.head.append(script);
    }

    async postMessage(data) {
      await this.ready;
      const sent = new this.inside.MessageEvent("message", { data: structuredClone(data) });
      this.inside.dispatchEvent(sent);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
