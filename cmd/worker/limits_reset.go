package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
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
	made, err := c.change(ctx, control.Change{Verb: control.VerbReset, Scope: words[0], Rule: words[1]})
	if errors.Is(err, policystore.ErrNothingToReset) {
		rule := "rate rule"
		if words[1] != "" {
			rule += " " + cli.Quote(words[1])
		}
		return cli.Errorf("worker limits show "+cli.Quote(words[0]), "no %s counts at %s itself", rule, cli.Quote(words[0]))
	}
	if err != nil {
		return err
	}
	for _, one := range made.Version.Resets {
		r := resetReport{one.Scope, one.Rule, true, one.Unit, one.Used, made.Version.Number}
		if err := c.print(r, resetLine(one)); err != nil {
			return err
		}
	}
	return nil
}

func resetLine(r policystore.Reset) string {
	if r.Rule == "" {
		return cli.Quote(r.Scope) + " is no longer paused"
	}
	used := fmt.Sprintf("%d %s", r.Used, cli.Quote(r.Unit))
	if r.Unit == policy.Requests {
		used = counted(int(r.Used), "request", "requests")
	}
	return fmt.Sprintf("%s %s is reset, as if it had not been used; it had counted %s", cli.Quote(r.Scope), cli.Quote(r.Rule), used)
}
