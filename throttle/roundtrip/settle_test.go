package roundtrip

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

const tokens = "{name: t, algorithm: sliding-window, limit: 5000, per: 1h, unit: tokens}"

// estimated costs 900 tokens each.
func estimated(*http.Request) policy.Costs { return policy.Costs{"tokens": 900} }

// spent is what is charged by now.
func spent(t *testing.T, l *throttle.Limiter) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), throttle.Request{Scope: "p", Costs: policy.Costs{"tokens": 1}})
	must(t, err)
	return 5000 - d.Rules[0].Remaining
}

// usage reads what JSON tells of tokens, at the end of a body or of a stream of lines.
func usage(resp *http.Response) (policy.Costs, bool) {
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, false
	}
	var last struct {
		Usage *struct{ Tokens int64 }
	}
	for line := range bytes.Lines(text) {
		if err := json.Unmarshal(bytes.TrimPrefix(line, []byte("data: ")), &last); err != nil {
			return nil, false
		}
	}
	if last.Usage == nil {
		return nil, false
	}
	return policy.Costs{"tokens": last.Usage.Tokens}, true
}

func header(resp *http.Response) (policy.Costs, bool) {
	n, err := strconv.ParseInt(resp.Header.Get("X-Tokens"), 10, 64)
	return policy.Costs{"tokens": n}, err == nil
}

func trailer(resp *http.Response) (policy.Costs, bool) {
	n, err := strconv.ParseInt(resp.Trailer.Get("X-Tokens"), 10, 64)
	return policy.Costs{"tokens": n}, err == nil
}

// "A header of it, or what its body says": what it names is made what was charged, "without true the request stays charged as it
// was estimated", and the answer is the caller's as it is. Settled is told "what is free again, what is charged as a debt, and what
// is over and charged to nobody", and nothing where "there was nothing to settle by".
func TestSettle(t *testing.T) {
	t.Parallel()
	stream := "data: {}\n" + strings.Repeat("data: {\"word\": \"hello\"}\n", 100000)
	said := func(tokens int64) string { return fmt.Sprintf(`{"usage": {"tokens": %d}}`, tokens) }
	less, none := throttle.SettledRule{Spent: 150, Back: 750}, throttle.SettledRule{}
	for name, tt := range map[string]struct {
		settle   func(*http.Response) (policy.Costs, bool)
		body     string
		inHeader bool
		want     int64
		told     throttle.SettledRule
	}{
		"a body of JSON":       {usage, said(150), false, 150, less},
		"as estimated":         {usage, said(900), false, 900, throttle.SettledRule{Spent: 900}},
		"more than estimated":  {usage, said(1500), false, 1500, throttle.SettledRule{Spent: 1500, Debt: 600}},
		"more than is charged": {usage, said(70_000), false, 5000, throttle.SettledRule{Spent: 70_000, Debt: 9_100, Over: 60_000}},
		"nothing was spent":    {usage, said(0), false, 0, throttle.SettledRule{Back: 900}},
		"the end of a stream":  {tail, stream + "data: " + said(150), false, 150, less},
		"a header":             {header, "hello", true, 150, less},
		"a header, no body":    {header, "", true, 150, less},
		"a trailer":            {trailer, "hello", false, 150, less},
		"no word of it":        {usage, `{"answer": 42}`, false, 900, none},
		"an answer of a fault": {usage, "internal error", false, 900, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.inHeader {
					w.Header().Set("X-Tokens", "150")
				}
				w.Header().Set("Trailer", "X-Tokens")
				_, _ = io.WriteString(w, tt.body)
				w.Header().Set("X-Tokens", "150")
			}))
			defer s.Close()
			var told []throttle.SettledRule
			limiter := limiterOf(t, tokens)
			c := &http.Client{Transport: &Transport{
				Limiter: limiter, Scope: always("p"), Costs: estimated, Settle: tt.settle,
				Settled: func(r *http.Request, by throttle.Settlement) {
					if r.URL.String() != s.URL || by.Over() != (tt.told.Over > 0) {
						t.Errorf("%s: %+v", r.URL, by)
					}
					told = append(told, by.Rules...)
				},
			}}
			resp, err := c.Get(s.URL)
			must(t, err)
			if got := spent(t, limiter); tt.body != "" && got != 900 {
				t.Errorf("%d are charged before the body is read", got)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil || string(text) != tt.body {
				t.Errorf("%d bytes that begin with %.20q, %v", len(text), text, err)
			}
			if got := spent(t, limiter); got != tt.want {
				t.Errorf("%d are charged, want %d", got, tt.want)
			}
			must(t, resp.Body.Close())
			var want []throttle.SettledRule
			if tt.told != none {
				tt.told.Scope, tt.told.Rule, tt.told.Unit = "p", "t", "tokens"
				want = append(want, tt.told)
			}
			if !slices.Equal(told, want) {
				t.Errorf("told %+v, want %+v", told, want)
			}
		})
	}
}

// tail reads the last line of a long stream, of which it sees the last MiB.
func tail(resp *http.Response) (policy.Costs, bool) {
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) != 1<<20 {
		return nil, false
	}
	resp.Body = io.NopCloser(bytes.NewReader(text[bytes.LastIndexByte(text, '\n')+1:]))
	return usage(resp)
}

// scripted answers with a body of its own.
type scripted struct{ body io.ReadCloser }

func (s scripted) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: s.body}, nil
}

// asked is a Settle that counts how often it is asked, and what it saw.
type asked struct {
	times atomic.Int64
	saw   atomic.Value
}

func (a *asked) settle(resp *http.Response) (policy.Costs, bool) {
	a.times.Add(1)
	text, _ := io.ReadAll(resp.Body)
	a.saw.Store(string(text))
	return policy.Costs{"tokens": 10}, true
}

// "It is called once for each answer", when its body has been read or closed before, and "never for a body that nobody closes".
func TestSettleOnce(t *testing.T) {
	t.Parallel()
	read := func(n int64) func(io.ReadCloser) error {
		return func(b io.ReadCloser) error { _, err := io.CopyN(io.Discard, b, n); return err }
	}
	all := func(b io.ReadCloser) error { _, err := io.Copy(io.Discard, b); return err }
	shut := io.ReadCloser.Close
	for name, tt := range map[string]struct {
		steps []func(io.ReadCloser) error
		times int64
		saw   string
		want  int64
	}{
		"abandoned":            {nil, 0, "", 900},
		"abandoned midway":     {[]func(io.ReadCloser) error{read(3)}, 0, "", 900},
		"read":                 {[]func(io.ReadCloser) error{all, all}, 1, "hello", 10},
		"read and closed":      {[]func(io.ReadCloser) error{all, shut, shut}, 1, "hello", 10},
		"closed midway":        {[]func(io.ReadCloser) error{read(3), shut, all}, 1, "hel", 10},
		"closed before it all": {[]func(io.ReadCloser) error{shut, all, shut}, 1, "", 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter, a := limiterOf(t, tokens), &asked{}
			c := &http.Client{Transport: &Transport{
				Limiter: limiter, Scope: always("p"), Costs: estimated, Settle: a.settle,
				Base: scripted{io.NopCloser(strings.NewReader("hello"))},
			}}
			resp, err := c.Get("http://api.example.com")
			must(t, err)
			defer resp.Body.Close() // what it does is no part of the test
			for _, step := range tt.steps {
				must(t, step(resp.Body))
			}
			if saw, _ := a.saw.Load().(string); a.times.Load() != tt.times || saw != tt.saw || spent(t, limiter) != tt.want {
				t.Errorf("asked %d times, saw %q, %d are charged", a.times.Load(), saw, spent(t, limiter))
			}
		})
	}
}

// "What fails is told by the body's Close, and never by a Read."
func TestSettleFails(t *testing.T) {
	t.Parallel()
	for want, costs := range map[string]policy.Costs{
		throttle.ErrUnavailable.Error(): {"tokens": 10}, `unit "Tokens" is no unit's name`: {"Tokens": 10}, "0 units; write 1 to 16": nil,
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			limiter, server := throttletest.NewWithRedis(t, throttletest.Policy(t, "limits: {p: {rules: ["+tokens+"]}}"))
			c := &http.Client{Transport: &Transport{
				Limiter: limiter, Scope: always("p"), Costs: estimated, Base: scripted{io.NopCloser(strings.NewReader("hello"))},
				Settle: func(*http.Response) (policy.Costs, bool) { return costs, true },
			}}
			resp, err := c.Get("http://api.example.com")
			must(t, err)
			if costs["tokens"] > 0 {
				server.SetError("OOM command not allowed")
			}
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "hello" {
				t.Errorf("%q, %v", text, err)
			}
			if err := resp.Body.Close(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Errorf("told twice: %v", err)
			}
		})
	}
}

var _ = Transport{Settle: llm.Costs} // for vendors without a dialect

// docs/llm.md: where limits.yaml names the vendor of a language model, the end of the answer settles its request, in USD too.
func TestUsageOfDialect(t *testing.T) {
	t.Parallel()
	const said = `{"model": "gpt-5.5", "usage": {"prompt_tokens": 100, "completion_tokens": 50}}`
	body := `{"padding": "` + strings.Repeat("x", 2*mostSeen) + `", ` + said[1:] // longer than what a Settle gets
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	defer s.Close()
	limiter, _ := throttletest.NewWithRedis(t, throttletest.Policy(t, `limits: {p: {answers: openai, rules: [`+tokens+`,
		{name: money, algorithm: sliding-window, limit: 5000, per: 1h, unit: usd}]}}`))
	prices, err := llm.NewPrices(map[string]llm.Price{"gpt-5.5": {"input": 1, "output": 10}})
	must(t, err)
	var told []throttle.SettledRule
	c := &http.Client{Transport: &Transport{
		Limiter: limiter, Scope: always("p"), Prices: prices, Costs: func(*http.Request) policy.Costs { return policy.Costs{"tokens": 900, "usd": 900} },
		Settled: func(_ *http.Request, s throttle.Settlement) { told = append(told, s.Rules...) },
	}}
	resp, err := c.Get(s.URL)
	must(t, err)
	text, err := io.ReadAll(resp.Body)
	if err != nil || string(text) != body || len(told) != 2 || told[0].Spent != 150 || told[1].Spent != 600 {
		t.Errorf("%d bytes, %v, %+v", len(text), err, told)
	}
	must(t, resp.Body.Close())
}
