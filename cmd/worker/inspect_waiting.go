package main

import (
	"bytes"
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker/control"
)

// mostListed is how many scopes "worker inspect scope" lists at most.
const mostListed = 1000

// waitingSummary is the last object of "worker inspect -json scope"; docs/json.md has its fields.
type waitingSummary struct {
	Summary bool `json:"summary"`
	Scopes  int  `json:"scopes"`
	More    bool `json:"more"`
}

// waiting lists the scopes in which most tasks wait.
func (i *inspection) waiting(ctx context.Context) error {
	all, err := i.answers.Waiting(ctx, atCommandLine(""), i.most)
	if err != nil {
		return explain(ctx, err, i.url)
	}
	if !i.json {
		return i.waitingTable(all)
	}
	for _, w := range all.Fullest {
		if err := i.printObject(w); err != nil {
			return err
		}
	}
	return i.printObject(waitingSummary{true, all.Scopes, all.More})
}

func (i *inspection) waitingTable(all control.Waiting) error {
	if len(all.Fullest) == 0 {
		return i.write([]byte("no task waits\n"))
	}
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "WAITING\tSCOPE\tFIRST SINCE\tNEXT START")
	for _, s := range all.Fullest {
		since, next := "unknown", "unknown: no rule matches the scope"
		if !s.FirstSince.IsZero() {
			since = s.FirstSince.String()
		}
		if s.Reason != control.ReasonUnmatched {
			next = i.start(s.NextStart, s.Range, s.Reason, s.Rule, s.RuleScope)
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", s.Waiting, cli.Quote(s.Scope), since, cli.Escape(next))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	count := counted(all.Scopes, "scope", "scopes")
	switch {
	case all.More:
		_, _ = fmt.Fprintf(&b, "the fullest of %s that were counted; there are more\n", count)
	case all.Scopes > len(all.Fullest):
		_, _ = fmt.Fprintf(&b, "the fullest of %s; -limit N lists more\n", count)
	}
	return i.write(b.Bytes())
}
