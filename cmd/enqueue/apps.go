package main

import (
	"fmt"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// mostAppScopes is of how many levels a warning is printed.
const mostAppScopes = 20

// appNotes knows which applications may spend from which levels. The zero appNotes knows none.
type appNotes struct {
	policy *policy.Policy
	told   map[string]bool
}

// of returns the applications that alone may run a task, nil for all.
func (n *appNotes) of(r queue.Result) []string {
	if n.policy == nil || r.AppScope == "" {
		return nil
	}
	level, err := policy.ParseScope(r.AppScope)
	if err != nil {
		return nil
	}
	apps, _ := n.policy.Apps(level)
	return apps
}

// warning says once for each level that only some applications may run its tasks. Who
// enqueues need not be who runs, so it is no more than that.
func (n *appNotes) warning(r queue.Result) string {
	apps := n.of(r)
	if apps == nil || n.told[r.AppScope] || len(n.told) >= mostAppScopes || r.State != queue.Enqueued && r.State != queue.Valid {
		return ""
	}
	if n.told == nil {
		n.told = map[string]bool{}
	}
	n.told[r.AppScope] = true
	names := make([]string, len(apps))
	for i, app := range apps {
		names[i] = cli.Quote(app)
	}
	return fmt.Sprintf("only workers of %s run tasks of %s (worker -app NAME); the tasks wait for one of them\n", strings.Join(names, ", "), cli.Quote(r.AppScope))
}
