// Command gen writes the tasks of the quickstart to standard output. It draws from a fixed seed: the file is always the same.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
)

// api is where the tasks call: the counting API of the demo.
const api = "http://127.0.0.1:18080/v1/"

// load is the tasks of one scope.
type load struct {
	scope   string
	tasks   int
	units   int    // what they cost together, in costs of 1 to 3
	latency string // how long the API takes for each
	fails   int    // how many are answered 503 the first time
}

// At the limits of limits.yaml each of them takes 20 to 30 seconds.
var loads = []load{
	{scope: "payments/acme/charges", tasks: 120, units: 160, latency: "20ms"},
	{scope: "payments/acme/refunds", tasks: 40, units: 40},
	{scope: "payments/globex/charges", tasks: 75, units: 100, latency: "50ms", fails: 4},
	{scope: "payments/initech/charges", tasks: 60, units: 60, latency: "900ms"}, // 3 at once: 3.3/s
	{scope: "search/acme", tasks: 60, units: 80},
	{scope: "search/globex", tasks: 60, units: 60, fails: 4},
	{scope: "search/initech", tasks: 40, units: 60, latency: "10ms"},
}

type task struct {
	Type     string `json:"type"`
	ID       string `json:"id"`
	Scope    string `json:"scope"`
	Cost     int    `json:"cost,omitempty"`
	Queue    string `json:"queue"`
	MaxRetry *int   `json:"max_retry,omitempty"`
	Timeout  string `json:"timeout"`
	HTTP     call   `json:"http"`
}

type call struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body,omitempty"`
}

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// write writes the tasks of all scopes in one shuffled order, so that no tenant
// comes first, with those that fail at first near the beginning.
func write(w io.Writer) error {
	rnd := rand.New(rand.NewPCG(20, 18))
	var early, tasks []task
	for _, l := range loads {
		of := l.make(rnd)
		early = append(early, of[:l.fails]...)
		tasks = append(tasks, of[l.fails:]...)
	}
	rnd.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, t := range append(early, tasks...) {
		if err := enc.Encode(t); err != nil {
			return err
		}
	}
	return out.Flush()
}

// make makes the tasks of one scope; the first ones fail once.
func (l load) make(rnd *rand.Rand) []task {
	costs := l.costs(rnd)
	tasks := make([]task, l.tasks)
	for i := range tasks {
		t := task{
			Type: "http", Scope: l.scope, Cost: costs[i], Timeout: "10s",
			ID: fmt.Sprintf("%s-%03d", strings.ReplaceAll(l.scope, "/", "-"), i+1),
			// A queue for each scope, for the sake of the table at the end: worker
			// counts pick-ups by queue. Limits do not need it.
			Queue: strings.ReplaceAll(l.scope, "/", "."),
		}
		query := ""
		if l.latency != "" {
			query = "latency=" + l.latency
		}
		switch {
		case i < l.fails:
			query = strings.Trim(query+"&fail=503&retry_after=1", "&")
		case rnd.IntN(3) == 0:
			none := 0
			t.MaxRetry = &none
		case rnd.IntN(3) == 0:
			few := 3
			t.MaxRetry = &few
		}
		t.HTTP = l.call(t, query, rnd)
		tasks[i] = t
	}
	return tasks
}

func (l load) call(t task, query string, rnd *rand.Rand) call {
	c := call{
		Method:  "GET",
		URL:     strings.TrimSuffix(api+l.scope+"?"+query, "?"),
		Headers: map[string]string{"X-Task-Id": t.ID, "X-Task-Cost": strconv.Itoa(t.Cost)},
	}
	if strings.HasPrefix(l.scope, "payments/") {
		c.Method = "POST"
		c.Headers["Content-Type"] = "application/json"
		c.Body = fmt.Sprintf(`{"amount":%d}`, 100+rnd.IntN(9900))
	}
	return c
}

// costs spreads the units over the tasks, 1 to 3 each.
func (l load) costs(rnd *rand.Rand) []int {
	costs := make([]int, l.tasks)
	for i := range costs {
		costs[i] = 1
	}
	for left := l.units - l.tasks; left > 0; {
		if i := rnd.IntN(l.tasks); costs[i] < 3 {
			costs[i]++
			left--
		}
	}
	return costs
}
