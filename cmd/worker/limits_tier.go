package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// noTier is the word that removes a tier.
const noTier = "-"

// tier returns the command that lists tiers, and sets one.
func (l *limitsCommand) tier() *cobra.Command {
	c := l.change("tier [SCOPE [TIER]]", `Put SCOPE into TIER, "-" for none; without TIER, list the tiers of SCOPE and below it, or all`, 0, 2, func(words []string) (control.Change, error) {
		edit := control.Change{Verb: control.VerbTier, Scope: words[0], Tier: words[1]}
		switch edit.Tier {
		case noTier:
			edit.Tier = ""
		case "":
			return edit, cli.Usage(cli.Errorf("worker limits tier "+cli.Quote(words[0])+" "+noTier, "the tier is empty"))
		}
		return edit, nil
	})
	c.Long = `Puts SCOPE, such as payments/acme, into a TIER that the limits have above it, as in
payments: {tiers: {gold: {...}}}. Its rules then lie over those of payments/*, and below
those of payments/acme. "-" removes the tier. Tasks that wait already start by the new
rules. The tiers of Config.TierOf and of a database are not listed.`
	set := c.RunE
	c.RunE = func(c *cobra.Command, words []string) error {
		if len(words) == 2 {
			return set(c, words)
		}
		return l.online(l.listTiers)(c, words)
	}
	return c
}

// listTiers prints the tiers that were set.
func (l *limitsCommand) listTiers(ctx context.Context, words []string) error {
	scope := ""
	if len(words) > 0 {
		if _, err := policy.ParseScope(words[0]); err != nil {
			return err
		}
		scope = words[0]
	}
	some := false
	for t, err := range l.store().Tiers(ctx, scope) {
		if err != nil {
			return err
		}
		some = true
		l.out.Print(t, cli.Quote(t.Scope)+" "+cli.Quote(t.Tier))
	}
	if !some && !l.json {
		l.out.Text("no tier was set")
	}
	return nil
}

// tierLines are the tiers that a version has changed, the first few of them unless all are wanted.
func tierLines(v policystore.Version, all bool) (text string) {
	for i, t := range v.Tiers {
		if i == historyShows && !all {
			return text + fmt.Sprintf("\n  and %d more", len(v.Tiers)-i)
		}
		if t.Before != "" {
			text += "\n  - " + cli.Quote(t.Scope) + " tier " + cli.Quote(t.Before)
		}
		if t.Tier != "" {
			text += "\n  + " + cli.Quote(t.Scope) + " tier " + cli.Quote(t.Tier)
		}
	}
	return text
}
