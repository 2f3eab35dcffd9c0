package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// answerReport is what a recorded answer would do; docs/json.md has its fields.
type answerReport struct {
	File   string           `json:"file"`
	Scope  string           `json:"scope"`
	Status int              `json:"status"`
	Means  upstream.Meaning `json:"means"`
	Names  []string         `json:"names,omitempty"`
	// Waits is which scope waits, and Rule the rule that the answer names.
	Waits string `json:"waits,omitempty"`
	Rule  string `json:"rule,omitempty"`
	// Wait is for how long, and Guessed says that it doubles while it is in vain.
	Wait    float64          `json:"wait_s,omitempty"`
	Guessed bool             `json:"guessed,omitempty"`
	Burns   bool             `json:"burns,omitempty"`
	Counts  bool             `json:"counts,omitempty"`
	Costs   map[string]int64 `json:"costs,omitempty"`
}

// mostAnswer is how much of a recorded answer is read: more than its header and the part of its body that is looked at.
const mostAnswer = 1 << 20

// checkAnswer prints what a recorded answer would do under a file of limits.
func (l *limitsCommand) checkAnswer(paths []string) error {
	switch {
	case len(paths) != 1:
		return cli.Usage(fmt.Errorf("-answer takes one file of limits, not %d", len(paths)))
	case l.answer == "" || l.answered == "":
		return cli.Usage(fmt.Errorf("-answer and -scope stand together: the answer, and the scope whose call was answered"))
	}
	limits, err := limitsyaml.Load(paths[0])
	if err != nil {
		if _, faulty := errors.AsType[*policy.Error](err); faulty {
			return err
		}
		return limitsUnread(paths[0], err)
	}
	scope, err := policy.ParseScope(l.answered)
	if err != nil {
		return err
	}
	if _, err := limits.Match(scope); err != nil {
		return err
	}
	resp, err := readAnswer(l.answer)
	if err != nil {
		return err
	}
	hint := limits.Reader(scope).ReadResponse(resp, time.Now())
	if hint.Usage {
		hint.Costs, _ = llm.Costs(resp)
	}
	r := reportAnswer(limits, scope, hint)
	r.File, r.Status = l.answer, resp.StatusCode
	l.out.Print(r, r.text())
	return nil
}

// readAnswer reads a recorded answer: a status line, header lines, an empty line, and the body.
func readAnswer(path string) (*http.Response, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written that could be lost
	text, err := io.ReadAll(io.LimitReader(f, mostAnswer))
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer: %w", err)
	}
	for _, version := range []string{"HTTP/2 ", "HTTP/3 "} { // as curl writes them
		if rest, is := bytes.CutPrefix(text, []byte(version)); is {
			text = slices.Concat([]byte("HTTP/1.1 "), rest)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	if err != nil {
		return nil, fmt.Errorf("%s is no recorded answer: %w; write it as curl -i does: HTTP/1.1 429 Too Many Requests, header lines, an empty line, the body", path, err)
	}
	_, body, _ := bytes.Cut(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n\n"))
	resp.Body = io.NopCloser(bytes.NewReader(body)) // in no chunks, whatever the header says: curl has decoded it
	return resp, nil
}

// reportAnswer returns what an answer to a call of a scope means.
func reportAnswer(limits *policy.Policy, scope policy.Scope, hint upstream.Hint) answerReport {
	r := answerReport{Scope: scope.String(), Means: upstream.Fine, Names: hint.Names, Costs: hint.Costs}
	refusals := limits.Refusals(scope)
	switch {
	case hint.Failed:
		r.Means = upstream.Failed
	case hint.Limited:
		r.Means, r.Burns, r.Counts = upstream.Limited, hint.Burns, hint.Counts || refusals.Count
		waits, named, is := limits.WaitsFor(scope, hint)
		if r.Waits = waits.String(); is {
			r.Rule = named.Rule.Name
		}
		wait := hint.Retry
		if r.Guessed = !hint.RetryKnown; r.Guessed {
			wait = cmp.Or(hint.Pause, refusals.Pause)
		}
		r.Wait = wait.Seconds()
	}
	if limits.Answers(scope) == policy.AnswersIgnore {
		r.Waits, r.Rule, r.Wait, r.Guessed = "", "", 0, false
	}
	return r
}

func (r answerReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d to a call of %s: %s", r.File, r.Status, r.Scope, r.Means)
	if len(r.Names) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(r.Names, ", "))
	}
	wait := time.Duration(r.Wait * float64(time.Second))
	switch {
	case r.Means == upstream.Limited && r.Waits == "":
		b.WriteString("; nothing waits, since its answers are ignored")
	case r.Waits != "" && r.Guessed:
		fmt.Fprintf(&b, "; %s waits %s at first, and twice as long each time that it was in vain", r.Waits, wait)
	case r.Waits != "":
		fmt.Fprintf(&b, "; %s waits %s", r.Waits, wait)
	}
	if r.Rule != "" {
		fmt.Fprintf(&b, "; it names rule %s", r.Rule)
	}
	if r.Burns {
		b.WriteString("; it burns an attempt")
	}
	if r.Means == upstream.Limited && r.Counts {
		b.WriteString("; the call counts")
	}
	for _, unit := range slices.Sorted(maps.Keys(r.Costs)) {
		if n := r.Costs[unit]; n > 0 {
			b.WriteString("; it has cost " + policy.Amount(n, unit))
		}
	}
	return b.String()
}
