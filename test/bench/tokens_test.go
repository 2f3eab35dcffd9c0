package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// BenchmarkTokens has calls of a language model share a quota of tokens: each may take 4000 and takes 200 to 2000, which only the end of
// its answer says. The usual way never learns it, and charges the most, or what calls take on average.
func BenchmarkTokens(b *testing.B) {
	const most, mean = 4000, 1100
	r := tokenRun{limit: 60_000, per: 10 * time.Second, lasts: 30 * time.Second}
	if !long() {
		r.per, r.lasts = time.Second, 2*time.Second
	}
	for _, c := range []struct {
		contender
		cap, cost int64
	}{
		{named(planned, "Headway, charged the most"), 0, most},
		{named(planned, "Headway, charged the most, cap: 3%"), 3, most},
		{named(usualLimit, "asynq + redis_rate, charged the most"), 0, most},
		{named(usualLimit, "asynq + redis_rate, charged the mean"), 0, mean},
	} {
		c.spell = r.lasts
		r.of(b, c.contender, c.cap, c.cost)
	}
}

func named(c contender, name string) contender {
	c.name = name
	return c
}

// tokenRun is a quota of tokens, and how long it is spent.
type tokenRun struct {
	limit      int64
	per, lasts time.Duration
}

// of has a contender work off more calls than the quota has room for, each charged so much at first.
func (r tokenRun) of(b *testing.B, c contender, capped, cost int64) {
	b.Helper()
	api := newModel(r.per / 10_000)
	defer api.Close()
	rule := sliding("tokens", r.limit, r.per)
	rule.Unit, rule.Cap = "tokens", capped
	s := single(fmt.Sprintf("calls of 200 to 2000 tokens, 4000 at most, %d in %v", r.limit, r.per), int(2*r.quota())/1100, rule)
	s.limits["p"] = policy.ScopeConfig{Answers: "openai", Rules: []policy.Rule{rule}}
	s.costs, s.call, s.slots = policy.Costs{"tokens": cost}, api.call, 64
	c.into(b, s, func(o *outcome) figures.Row { return r.row(o, api.taken()) })
}

// quota is how many tokens the limit has room for in the time of the run.
func (r tokenRun) quota() int64 { return r.limit * int64(r.lasts) / int64(r.per) }

// row figures the tokens that calls took by when they arrived.
func (r tokenRun) row(o *outcome, calls []tokenCall) figures.Row {
	var all, most, now int64
	for i, from := 0, 0; i < len(calls); i++ {
		all += calls[i].tokens
		now += calls[i].tokens
		for ; calls[i].at.Sub(calls[from].at) >= r.per-shortened; from++ {
			now -= calls[from].tokens
		}
		most = max(most, now)
	}
	o.notes = append(o.notes, fmt.Sprintf("%d tokens of %d", all, r.quota()))
	row := o.row()
	row.Used, row.Most, row.MostAPI, row.Bound = float64(all)/float64(r.quota()), -1, most, r.limit
	row.P50, row.P99 = -1, -1
	return row
}

// model is an API of a language model. It streams its answers, which take some time a token, and their usage at the end.
type model struct {
	*httptest.Server
	mu    sync.Mutex
	calls []tokenCall
}

// tokenCall is a call that has arrived, and what it takes.
type tokenCall struct {
	at     time.Time
	tokens int64
}

func newModel(token time.Duration) *model {
	m := &model{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := fnv.New32a()
		_, _ = io.WriteString(id, r.Header.Get("X-Task-Id"))
		c := tokenCall{time.Now(), 200 + int64(id.Sum32()%1801)}
		m.mu.Lock()
		m.calls = append(m.calls, c)
		m.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"model": "m", "choices": [{"delta": {"content": "word"}}], "usage": null}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-time.After(time.Duration(c.tokens) * token)
		_, _ = fmt.Fprintf(w, `data: {"model": "m", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": %d}}`+"\n\n", c.tokens-100)
	}))
	m.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 2 * concurrency //nolint:forcetypeassert // as httptest has it
	return m
}

// call makes a call for a task and reads its answer to the end, which settles the run if that is ours.
func (m *model) call(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Task-Id", id)
	resp, err := m.Client().Do(req)
	if err != nil {
		return err
	}
	worker.ReportResponse(ctx, resp)
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// taken returns the calls in the order in which they arrived, and forgets them.
func (m *model) taken() []tokenCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	slices.SortFunc(calls, func(a, b tokenCall) int { return a.at.Compare(b.at) })
	return calls
}
