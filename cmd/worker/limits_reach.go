package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policystore"
)

// reach is in which processes a version is in force; docs/json.md has its fields.
type reach struct {
	Workers      int             `json:"workers"`
	Others       int             `json:"others"`
	Behind       []processReport `json:"behind,omitempty"`
	NotFollowing []processReport `json:"not_following,omitempty"`
	Unknown      []processReport `json:"unknown,omitempty"`
}

// processReport is one process; docs/json.md has its fields.
type processReport struct {
	App     string `json:"app,omitempty"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Version int64  `json:"version,omitempty"`
}

const (
	reachLook = 100 * time.Millisecond
	// reachBound is how long after it comes into force a change is waited for in processes that follow.
	reachBound = 1500 * time.Millisecond
	// reachNames is how many processes of a kind are named.
	reachNames = 10
)

// awaitReach waits until a version is in force in all processes that follow, for two seconds or so at most. It
// returns nil where that is not known: the user may not ask, or ctx ended.
func (l *limitsCommand) awaitReach(ctx context.Context, v policystore.Version) *reach {
	r := l.reachOf(ctx, v.Number)
	if r == nil || len(r.Behind) == 0 {
		return r
	}
	in, err := l.store().InForceIn(ctx, v)
	if err != nil {
		return r
	}
	for end := time.Now().Add(in + reachBound); len(r.Behind) > 0 && time.Now().Before(end); in = reachLook {
		if !rest(ctx, in) {
			return nil
		}
		if r = l.reachOf(ctx, v.Number); r == nil {
			return nil
		}
	}
	return r
}

// reachOf returns in which processes a version is in force now, or a later one. It returns nil where that cannot be asked.
func (l *limitsCommand) reachOf(ctx context.Context, version int64) *reach {
	processes, err := l.store().Processes(ctx)
	if err != nil {
		return nil
	}
	type place struct {
		host string
		pid  int
	}
	r, known := &reach{}, map[place]bool{}
	for _, p := range processes {
		known[place{p.Host, p.PID}] = true
		report := processReport{App: p.App, Host: p.Host, PID: p.PID}
		switch {
		case !p.Follows:
			r.NotFollowing = append(r.NotFollowing, report)
		case p.Version < version:
			report.Version = p.Version
			r.Behind = append(r.Behind, report)
		case p.Worker:
			r.Workers++
		default:
			r.Others++
		}
	}
	servers, err := asynq.NewInspectorFromRedisClient(l.rdb).Servers()
	if err != nil {
		return r // this user may not ask for them
	}
	for _, s := range servers {
		if at := (place{s.Host, s.PID}); !known[at] {
			known[at] = true // a process may have several servers
			r.Unknown = append(r.Unknown, processReport{Host: s.Host, PID: s.PID})
		}
	}
	return r
}

// line puts it into one sentence.
func (r *reach) line() string {
	var in, parts []string
	if r.Workers > 0 {
		in = append(in, cli.Count(r.Workers, "worker", "workers"))
	}
	switch {
	case r.Others > 0 && r.Workers > 0:
		in = append(in, cli.Count(r.Others, "other process", "other processes"))
	case r.Others > 0:
		in = append(in, cli.Count(r.Others, "process", "processes"))
	}
	switch {
	case in != nil:
		parts = append(parts, "in force in "+strings.Join(in, " and "))
	case len(r.Behind) == 0:
		parts = append(parts, "no running process follows these limits")
	}
	add := func(all []processReport, what string, name func(processReport) string) {
		if len(all) > 0 {
			parts = append(parts, what+": "+named(all, name))
		}
	}
	add(r.Behind, fmt.Sprintf("not yet in %d, or ended", len(r.Behind)), func(p processReport) string {
		return fmt.Sprintf("%s@%s at version %d", p.App, p.Host, p.Version)
	})
	add(r.NotFollowing, fmt.Sprintf("%d of an app that does not follow", len(r.NotFollowing)), func(p processReport) string { return p.App + "@" + p.Host })
	add(r.Unknown, cli.Count(len(r.Unknown), "asynq server", "asynq servers")+" not known to follow", func(p processReport) string {
		return fmt.Sprintf("%s (pid %d)", p.Host, p.PID)
	})
	return strings.Join(parts, "; ")
}

// named lists the first processes, each as name says.
func named(all []processReport, name func(processReport) string) string {
	var list []string
	for _, p := range all[:min(reachNames, len(all))] {
		list = append(list, cli.Escape(name(p)))
	}
	if more := len(all) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
