// Gives each module of this page an address in memory, and names them to one another: #page is the one that begins.
(() => {
  const imports = {};
  for (const part of document.querySelectorAll("script[data-module]")) {
    const source = `${part.textContent}\n//# sourceURL=${part.dataset.module}.mjs`;
    imports[`#${part.dataset.module}`] = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  }
  const map = document.createElement("script");
  map.type = "importmap";
  map.textContent = JSON.stringify({ imports });
  document.head.append(map);
  import("#page").catch((error) => {
    const place = document.getElementById("state");
    place.hidden = false;
    place.textContent = `This browser cannot run the page: ${error.message}. A current Chrome, Edge, Firefox or Safari can.`;
  });
})();
