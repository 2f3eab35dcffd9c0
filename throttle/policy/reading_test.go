package policy_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

const readingText = `
limits:
  p:
    answers: github
    rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s, vendor: requests-per-minute}]
    scopes:
      own:
        answers:
          dialect: stripe
          also: [{status: 403, body: "out of quota", wait: 1m30s, scope: p, burns: true}, {header: "X-Error: dead", means: failed}]
          reasons: {Endpoint-Rate: here, global-rate: top, shared: "p/*"}
`

// What stands under answers is how answers are read; it is written as short as it can be, and read back.
func TestReading(t *testing.T) {
	t.Parallel()
	first := mustParse(t, readingText)
	for _, p := range []*policy.Policy{first, mustParse(t, string(limitsyaml.Format(first)))} {
		now := time.Now()
		limited := p.Reader(mustScope(t, "p/x")).ReadResponse(answerWith(403, `{"message": "You have exceeded a secondary rate limit."}`), now)
		if !limited.Limited || limited.Pause != time.Minute {
			t.Errorf("github's: %+v", limited)
		}
		own := p.Reader(mustScope(t, "p/own/x")).ReadResponse(answerWith(403, "Out of quota"), now)
		if !own.Limited || own.Pause != 90*time.Second || own.Where != "p" || !own.Burns {
			t.Errorf("one of also: %+v", own)
		}
		if got := p.Reader(mustScope(t, "p/own")).ReadResponse(answerWith(403, `{"message": "You have exceeded a secondary rate limit."}`), now); got.Limited {
			t.Errorf("a level's answers replace all above: %+v", got)
		}
		if got := p.Reader(mustScope(t, "p/own")).Read(503, http.Header{"X-Error": {"dead"}, "Retry-After": {"7"}}, now); got.Limited || !got.Failed {
			t.Errorf("a failure: %+v", got)
		}
		for name, want := range map[string]string{"endpoint-rate": "here", "GLOBAL-RATE": "top", "shared": "p/*", "unknown": ""} {
			if got := p.Reader(mustScope(t, "p/own")).ScopeFor([]string{name}); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		bounds, err := p.Match(mustScope(t, "p"))
		if err != nil || bounds[0].Rule.Vendor != "requests-per-minute" {
			t.Errorf("%+v, %v", bounds, err)
		}
	}
	text := string(limitsyaml.Format(first))
	for _, want := range []string{"answers: github\n", `also: [{status: 403, body: "out of quota", wait: 1m30s, scope: p, burns: true}, {header: "X-Error: dead", means: failed}]`, "vendor: requests-per-minute"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func answerWith(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: readCloser{strings.NewReader(body)}}
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// "That is also what waits if the answer says a level that is not on the call's path."
func TestWaitsFor(t *testing.T) {
	t.Parallel()
	p := mustParse(t, readingText)
	for _, c := range [][3]string{
		{"p/own/x", "", "p/own/x"}, {"p/own/x", upstream.ScopeHere, "p/own/x"}, {"p/own/x", upstream.ScopeTop, "p/own"}, {"p/y/x", upstream.ScopeTop, "p"},
		{"p/own/x", "p", "p"}, {"p/own/x", "p/*", "p/own"}, {"p/own/x", "p/other", "p/own/x"}, {"p/own/x", "p/*/*/*", "p/own/x"}, {"q/x", upstream.ScopeTop, "q/x"},
	} {
		if got, _, _ := p.WaitsFor(mustScope(t, c[0]), upstream.Hint{Where: c[1]}); got.String() != c[2] {
			t.Errorf("%s, %q: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// Faults of how answers are read: a row is what stands under answers, at 1:23.
func TestReadingFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{dialect: githib}":                   `1:33: limits.a.answers.dialect: dialect is "githib"; did you mean github?`,
		"{also: []}":                          `1:30: limits.a.answers.also: also is empty; write answers, such as [{status: 403, body: "secondary rate limit", wait: 60s}], or remove the line`,
		"{also: [{}]}":                        `1:31: limits.a.answers.also[0]: names no answer; add a status, header, body or json`,
		"{also: [x]}":                         `1:31: limits.a.answers.also[0]: the answer is the text "x"; write its fields, such as {status: 403, wait: 60s}`,
		"{also: [{status: 99}]}":              `1:40: limits.a.answers.also[0].status: status is 99; it must be 200 to 599`,
		"{also: [{status: 403, wait: 10ms}]}": `1:51: limits.a.answers.also[0].wait: wait is 10ms; the least is 100ms`,
		"{also: [{status: 403, means: bad}]}": `1:52: limits.a.answers.also[0].means: means is "bad"; write limited, failed or fine`,
		"{also: [{status: 403, means: fine, burns: true}]}": `1:65: limits.a.answers.also[0].burns: burns says how calls wait, and with fine none does; remove it, or write limited`,
		"{also: [{status: 403, scope: p//x}]}":              `1:52: limits.a.answers.also[0].scope: scope is "p//x", and name 2 is empty; write 1 to 128 bytes; other values are here and top`,
		"{also: [{header: X Y}]}":                           `1:40: limits.a.answers.also[0].header: header is "X Y"; write the name of a field, or its name and a text, such as "X-Error: quota"`,
		"{also: [{body: ''}]}":                              `1:38: limits.a.answers.also[0].body: body is empty; write a text of the answer, or remove it`,
		"{also: [{status: 403, code: 1}]}":                  `1:45: limits.a.answers.also[0].code: code is not a field of an answer; did you mean scope?`,
		"{reasons: {}}":                                     `1:33: limits.a.answers.reasons: reasons is empty; write the vendor's names of limits, such as {endpoint-rate: here, global-rate: top}, or remove the line`,
		"{reasons: {a: 'p//'}}":                             `1:37: limits.a.answers.reasons.a: is "p//", and name 2 is empty; write 1 to 128 bytes; other values are here and top`,
		"{reasons: {é: here}}":                              `1:37: limits.a.answers.reasons: name "é" has other characters than those of ASCII that are printed`,
		"{reasons: {a: here, A: top}}":                      `1:37: limits.a.answers.reasons: name "a" is there already, in other letters; keep one of the two`,
		"{mode: ignore, dialect: github}":                   `1:47: limits.a.answers.dialect: dialect says what follows from an answer, and with ignore nothing does; remove it, or write pause`,
		"{mode: github}":                                    `1:30: limits.a.answers: mode is "github"; write heed, refusals, pause or ignore`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {answers: "+text+"}}\n", want)
		})
	}
	checkFaults(t, "limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1, vendor: ''}]}}\n",
		`1:74: limits.a.rules[0].vendor: vendor is empty; write what the vendor's answers call the limit, or remove it`)
}
