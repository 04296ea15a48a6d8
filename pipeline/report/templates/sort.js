for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.querySelectorAll("th[data-column]")];
  const sort = (head) => {
    const first = head.dataset.first;
    const again = head.getAttribute("aria-sort") === first;
    const order = again ? (first === "ascending" ? "descending" : "ascending") : first;
    const column = Number(head.dataset.column);
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === "");
      const numbers = Number(value(a)) - Number(value(b));
      const found = column ? numbers : value(a).localeCompare(value(b));
      return order === "ascending" ? found : -found;
    };
    const rows = [...body.rows].filter((row) => !row.classList.contains("baseline"));
    const last = [...body.rows].filter((row) => row.classList.contains("baseline"));
    body.append(...rows.sort(compare), ...last);
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
  };
  heads.forEach((head) => head.querySelector("button").addEventListener("click", () => sort(head)));
}
