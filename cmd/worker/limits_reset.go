package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// resetReport is what reset prints for each rule; docs/json.md has its fields.
type resetReport struct {
	Scope   string `json:"scope"`
	Rule    string `json:"rule"`
	Reset   bool   `json:"reset"`
	Unit    string `json:"unit,omitempty"`
	Used    int64  `json:"used"`
	Version int64  `json:"version"`
}

// reset forgets what was spent under the rules of a scope, and prints how much that was.
func (c *limitsCommand) reset(ctx context.Context) error {
	words := append(c.words, "")
	if c.dry {
		return c.nothingToReset(c.preview(ctx, control.Change{Verb: control.VerbReset, Scope: words[0], Rule: words[1]}))
	}
	made, err := c.change(ctx, control.Change{Verb: control.VerbReset, Scope: words[0], Rule: words[1]})
	if err != nil {
		return c.nothingToReset(err)
	}
	for _, one := range made.Version.Resets {
		r := resetReport{one.Scope, one.Rule, true, one.Unit, one.Used, made.Version.Number}
		if err := c.print(r, resetLine(one)); err != nil {
			return err
		}
	}
	return nil
}

// nothingToReset says where there is nothing to reset.
func (c *limitsCommand) nothingToReset(err error) error {
	if !errors.Is(err, policystore.ErrNothingToReset) {
		return err
	}
	rule := "rate rule"
	if len(c.words) > 1 {
		rule += " " + cli.Quote(c.words[1])
	}
	return cli.Errorf("worker limits show "+cli.Quote(c.words[0]), "no %s counts at %s itself", rule, cli.Quote(c.words[0]))
}

func resetLine(r policystore.Reset) string {
	if r.Rule == "" {
		return cli.Quote(r.Scope) + " is no longer paused"
	}
	return fmt.Sprintf("%s %s is reset, as if it had not been used; it had counted %s", cli.Quote(r.Scope), cli.Quote(r.Rule), usedText(r))
}

func usedText(r policystore.Reset) string {
	if r.Unit == policy.Requests {
		return counted(int(r.Used), "request", "requests")
	}
	return fmt.Sprintf("%d %s", r.Used, cli.Quote(r.Unit))
}
