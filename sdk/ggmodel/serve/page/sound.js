// Sounds: from the microphone, and from files in formats that the server does not read.

const RATE = 16000; // samples a second, which models for speech have

/** A mono WAV file of samples between -1 and 1. */
function wav(samples) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, i) => data.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  [[16, 16], [24, RATE], [28, 2 * RATE], [40, 2 * samples.length]].forEach(([at, value]) => data.setUint32(at, value, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, value]) => data.setUint16(at, value, true));
  text(36, "data");
  samples.forEach((x, i) => data.setInt16(44 + 2 * i, 32767 * Math.max(-1, Math.min(1, x)), true));
  return data.buffer;
}

/** A sound that the browser can read, as a WAV file. */
export async function asWav(blob, name) {
  const decoder = new OfflineAudioContext(1, 1, RATE);
  const sound = await decoder.decodeAudioData(await blob.arrayBuffer());
  const mixer = new OfflineAudioContext(1, Math.max(1, sound.length), RATE);
  const source = new AudioBufferSourceNode(mixer, { buffer: sound });
  source.connect(mixer.destination);
  source.start();
  const mixed = await mixer.startRendering();
  return new File([wav(mixed.getChannelData(0))], name, { type: "audio/wav" });
}

/** Has a button record what the microphone hears, until it is pressed again; `add` gets the file. */
export function watchMicrophone(button, add, warn) {
  let recorder = null;
  const ended = (parts, stream) => async () => {
    stream.getTracks().forEach((track) => track.stop());
    recorder = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Record";
    try {
      add(await asWav(new Blob(parts), "recording.wav"));
    } catch {
      warn("Nothing was recorded.");
    }
  };
  button.addEventListener("click", async () => {
    if (recorder) return recorder.stop();
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const parts = [];
      recorder = new MediaRecorder(stream);
      recorder.ondataavailable = ({ data }) => parts.push(data);
      recorder.onstop = ended(parts, stream);
      recorder.start();
      button.setAttribute("aria-pressed", "true");
      button.textContent = "Stop recording";
    } catch (error) {
      warn(`The microphone cannot be used: ${error.message}. Browsers allow it on https and localhost alone.`);
    }
  });
}
