// Package llm reads what calls of language models have used: the tokens that an answer gives at its end, and what they cost. It knows the
// answers of OpenAI (chat completions, responses, embeddings, and what other vendors and servers have made alike), Anthropic (messages) and
// Gemini (generateContent), as one document and as streams, and tells them apart by their form.
//
//	client := &http.Client{Transport: &roundtrip.Transport{Limiter: limiter, Scope: scope, Costs: estimate, Settle: llm.Costs}}
//
// Where `answers` of limits.yaml names one of these vendors, package roundtrip, worker.ReportResponse and http tasks settle by
// themselves. Source: docs/llm.md
package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"sync"

	"github.com/headway-go/headway/throttle/policy"
)

// The units of what answers use.
const (
	Tokens     = "tokens"             // all of them, in and out
	Input      = "input-tokens"       // of the prompt, as the vendor's own limit counts them: Anthropic's without Cached
	Output     = "output-tokens"      // of the answer, Reasoning among them
	Cached     = "cached-tokens"      // of the prompt that were read from the vendor's cache
	CacheWrite = "cache-write-tokens" // of the prompt that were written to it
	Reasoning  = "reasoning-tokens"   // of the answer that are not shown, as far as the vendor counts them apart
	USD        = policy.USD           // millionths of a US dollar; see Prices
)

// maxTokens is the largest number of tokens that is taken for one.
const maxTokens = 1_000_000_000

// paths are where answers have their usage and the name of their model.
var (
	usagePaths = []string{"usage", "usageMetadata", "response.usage", "message.usage"}
	modelPaths = []string{"model", "modelVersion", "response.model", "message.model"}
)

// begun is the one path whose usage is not the last: that of Anthropic's first event.
const begun = "message.usage"

// Meter reads what one answer has used while its body is written to it. It keeps a bounded amount of memory, however long the body. It
// is not safe for concurrent use.
type Meter struct {
	prices *Prices
	refuse bool // the answer is an error
	scan   scanner
	used   usage
	model  string
	ended  bool // a usage has come that is no beginning
	bad    bool
}

// Meter returns a Meter for an answer, without its body. Nil prices read tokens alone.
//
//	meter := prices.Meter(resp)
//	read(io.TeeReader(resp.Body, meter))
//	if costs, known := meter.Costs(); known {
//		worker.Settle(ctx, costs)
//	}
func (p *Prices) Meter(resp *http.Response) *Meter {
	m := &Meter{prices: p, refuse: resp.StatusCode >= http.StatusBadRequest, bad: resp.Header.Get("Content-Encoding") != ""}
	m.scan = scanner{wants: isWanted, found: m.take}
	return m
}

func isWanted(path string) bool {
	return slices.Contains(usagePaths, path) || slices.Contains(modelPaths, path)
}

// Write reads a part of the body. It takes all of p and returns no error.
func (m *Meter) Write(p []byte) (int, error) {
	if m.refuse || m.bad {
		return len(p), nil
	}
	return m.scan.Write(p)
}

// take reads the usage in an object. Later ones replace earlier ones, field by field: those of a stream are totals so far.
func (m *Meter) take(values map[string][]byte) {
	for _, path := range modelPaths {
		name := ""
		if json.Unmarshal(values[path], &name) == nil && name != "" {
			m.model = name
		}
	}
	for _, path := range usagePaths {
		text := bytes.TrimSpace(values[path])
		if len(text) == 0 || string(text) == "null" {
			continue
		}
		if err := json.Unmarshal(text, &m.used); err != nil {
			m.bad = true
		}
		m.ended = m.ended || path != begun
	}
}

// Costs returns what the answer has used so far: the units of this package, USD among them if its model has a price. known is false if
// the answer does not say, or not yet; a charge then best stays as it was estimated. An answer with an error status has cost no money,
// and of its tokens nothing is known.
func (m *Meter) Costs() (costs policy.Costs, known bool) {
	if m.refuse {
		return policy.Costs{USD: 0}, m.prices != nil
	}
	n, is := m.used.count()
	if !is || !m.ended || m.bad {
		return nil, false
	}
	costs = policy.Costs{
		Tokens: n.input + n.cached + n.written + n.output, Input: n.limited, Output: n.output, Cached: n.cached, CacheWrite: n.written,
	}
	if n.reasoned {
		costs[Reasoning] = n.reasoning
	}
	if m.prices != nil {
		if cost, priced := m.prices.of(m.model, n); priced {
			costs[USD] = cost
		}
	}
	return costs, true
}

// Costs returns what an answer has used, by its body, and reads that to its end: a roundtrip.Transport.Settle. Of a document that is
// longer than what the Transport keeps, nothing is known.
func Costs(resp *http.Response) (policy.Costs, bool) { return (*Prices)(nil).Costs(resp) }

// Costs is the function Costs, with USD.
func (p *Prices) Costs(resp *http.Response) (policy.Costs, bool) {
	m := p.Meter(resp)
	n, err := io.Copy(m, resp.Body)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || n >= tail && kind != "text/event-stream" { // its beginning may be missing
		m.bad = true
	}
	return m.Costs()
}

// tail is how much of the end of a body roundtrip.Transport.Settle gets.
const tail = 1 << 20

// Watch has settle called with what an answer has cost, once, when its body has been read to its end or is closed before; with nil if
// that is not known by then. It calls nothing for an error without prices. The body's Close returns the error of settle; Read never does.
// The caller reads the body unchanged, as it comes.
func (p *Prices) Watch(resp *http.Response, settle func(policy.Costs) error) {
	if resp.Body == nil || resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest && p == nil {
		return
	}
	resp.Body = &watched{ReadCloser: resp.Body, meter: p.Meter(resp), settle: settle}
}

// watched is the body of an answer that is metered.
type watched struct {
	io.ReadCloser
	settle func(policy.Costs) error

	mu    sync.Mutex // a body may be closed while it is read
	meter *Meter     // nil once it has settled
	err   error      // of settling, until Close returns it
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.meter != nil {
		_, _ = w.meter.Write(p[:n])
	}
	if err == io.EOF {
		w.end()
	}
	return n, err
}

func (w *watched) Close() error {
	err := w.ReadCloser.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
	err = errors.Join(err, w.err)
	w.err = nil
	return err
}

// end settles, the first time that it is called.
func (w *watched) end() {
	if w.meter == nil {
		return
	}
	costs, _ := w.meter.Costs()
	w.err = w.settle(costs)
	w.meter = nil
}
