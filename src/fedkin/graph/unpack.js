// The drawing library is packed to a third of its size: the script that draws begins when it is unpacked.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
unpacked(document.getElementById("plotly").textContent).then((library) => {
  for (const text of [library, document.getElementById("script").textContent]) {
    document.head.append(Object.assign(document.createElement("script"), { textContent: text }));
  }
}, () => { document.getElementById("old").hidden = false; });
