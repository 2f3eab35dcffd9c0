package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
)

// resultJSON is a task's line under -json. docs/json.md has its fields.
type resultJSON struct {
	Line  int         `json:"line,omitempty"`
	ID    string      `json:"id"`
	Queue string      `json:"queue,omitempty"`
	State queue.State `json:"state"`
	// Archived says of a duplicate that its task has failed for good.
	Archived bool   `json:"archived,omitempty"`
	Start    string `json:"start,omitempty"`
	// What the start waits for in a dry run, and how exact it is.
	StartFrom string       `json:"start_from,omitempty"`
	StartTo   string       `json:"start_to,omitempty"`
	Reason    queue.Reason `json:"reason,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	RuleScope string       `json:"rule_scope,omitempty"`
	Expires   string       `json:"expires,omitempty"`
	Apps      []string     `json:"apps,omitempty"`
	Error     string       `json:"error,omitempty"`
}

// summaryJSON is the last line of a batch under -json.
type summaryJSON struct {
	Summary   bool `json:"summary"`
	Lines     int  `json:"lines"`
	Enqueued  int  `json:"enqueued"`
	Duplicate int  `json:"duplicate"`
	Invalid   int  `json:"invalid"`
	Failed    int  `json:"failed"`
	Archived  int  `json:"archived,omitempty"`
	endJSON
}

// forecastJSON is the last line of a dry run under -json.
type forecastJSON struct {
	Summary   bool `json:"summary"`
	DryRun    bool `json:"dry_run"`
	Lines     int  `json:"lines"`
	Valid     int  `json:"valid"`
	Duplicate int  `json:"duplicate"`
	Invalid   int  `json:"invalid"`
	Expiring  int  `json:"expiring"`
	// NoWorker are the queues that no live worker serves.
	NoWorker []string `json:"no_worker,omitempty"`
	endJSON
}

// endJSON is the end of both.
type endJSON struct {
	RandomIDs     int    `json:"random_ids"`
	UnknownStarts int    `json:"unknown_starts"`
	DoneAt        string `json:"done_at,omitempty"`
	DoneFrom      string `json:"done_from,omitempty"`
	DoneTo        string `json:"done_to,omitempty"`
	BoundScope    string `json:"bound_scope,omitempty"`
	BoundRule     string `json:"bound_rule,omitempty"`
	PausedScope   string `json:"paused_scope,omitempty"`
	PausedUntil   string `json:"paused_until,omitempty"`
	Interrupted   bool   `json:"interrupted"`
	ElapsedMS     int64  `json:"elapsed_ms"`
}

// summaryObject returns the last line under -json.
func summaryObject(sum queue.Summary, dry bool, unserved []string, interrupted bool, elapsed time.Duration) any {
	end := endJSON{
		RandomIDs: sum.Random, UnknownStarts: sum.UnknownStarts, DoneAt: stamp(sum.DoneAt), DoneFrom: stamp(sum.DoneFrom), DoneTo: stamp(sum.DoneTo),
		BoundScope: sum.Binding.Scope, BoundRule: sum.Binding.Rule,
		PausedScope: sum.Paused.Scope, PausedUntil: stamp(sum.Paused.Until),
		Interrupted: interrupted, ElapsedMS: elapsed.Milliseconds(),
	}
	if dry {
		return forecastJSON{true, true, sum.Total(), sum.Valid, sum.Duplicate, sum.Invalid, sum.Expiring, unserved, end}
	}
	return summaryJSON{true, sum.Total(), sum.Enqueued, sum.Duplicate, sum.Invalid, sum.Failed, sum.Archived, end}
}

// doneText says when a batch is done, in local time. It is empty without limits.
func doneText(sum queue.Summary, now time.Time) string {
	if sum.DoneAt.IsZero() {
		if sum.UnknownStarts == 0 {
			return ""
		}
		return fmt.Sprintf("done at an unknown time: the starts of %d are unknown\n", sum.UnknownStarts) + pausedText(sum.Paused, now)
	}
	text := "done at " + clock(sum.DoneAt, now)
	if !sum.DoneTo.IsZero() {
		text = "done at about " + clock(sum.DoneAt, now) + ", between " + clock(sum.DoneFrom, now) + " and " + clock(sum.DoneTo, now)
	}
	if sum.UnknownStarts > 0 {
		text += fmt.Sprintf(" at the earliest; the starts of %d are unknown", sum.UnknownStarts)
	}
	if sum.Binding != (queue.Binding{}) {
		text += ", bound by " + cli.Escape(sum.Binding.String())
	}
	return text + "\n" + pausedText(sum.Paused, now)
}

// startText says when a task would start, or why that is unknown.
func startText(r queue.Result) string {
	at := "at " + stamp(r.Start)
	switch {
	case r.Start.IsZero():
		return "at an unknown time" + unknownText(r)
	case !r.StartTo.IsZero():
		return "about " + at + ", between " + stamp(r.StartFrom) + " and " + stamp(r.StartTo)
	}
	return at
}

// unknownText says why a start is unknown.
func unknownText(r queue.Result) string {
	rule := cli.Quote(r.Binding.Rule) + " of " + cli.Quote(r.Binding.Scope)
	switch r.Reason {
	case queue.ReasonSuspended:
		return ": rule " + rule + " has limit 0"
	case queue.ReasonRun:
		return ": it waits for a run to end under rule " + rule + ", and none has ended lately"
	case queue.ReasonRule:
		return ": rule " + rule + " admits it at no time that is known"
	case queue.ReasonPaused, queue.ReasonUpstream:
		return ": " + cli.Quote(r.Binding.Scope) + " is paused"
	case queue.ReasonMember:
		return ": no member of the pool at " + cli.Quote(r.Binding.Scope) + " admits it at a time that is known"
	case queue.ReasonHours:
		return ": other rules apply by then"
	case queue.ReasonDelay:
		return ": not before its delay is over"
	}
	return ""
}

// pausedText describes a pause.
func pausedText(p queue.Paused, now time.Time) string {
	switch {
	case p.Scope == "":
		return ""
	case p.Until.IsZero():
		return cli.Quote(p.Scope) + " is paused\n"
	}
	return cli.Quote(p.Scope) + " is paused until " + clock(p.Until, now) + "\n"
}

// clock formats a time in the local zone, rounded up to a second, with its date unless that is today.
func clock(at, now time.Time) string {
	at = at.Add(time.Second - 1).Truncate(time.Second).Local()
	if at.Format(time.DateOnly) != now.Local().Format(time.DateOnly) {
		return at.Format(time.DateTime)
	}
	return at.Format(time.TimeOnly)
}

// resultObject returns a result under -json.
func resultObject(r queue.Result, apps []string, why string) resultJSON {
	return resultJSON{
		Line: r.Line, ID: r.ID, Queue: r.Queue, State: r.State, Archived: r.Archived, Start: stamp(r.Start),
		StartFrom: stamp(r.StartFrom), StartTo: stamp(r.StartTo), Reason: r.Reason, Rule: r.Binding.Rule, RuleScope: r.Binding.Scope,
		Expires: r.Expires, Apps: apps, Error: why,
	}
}

// stamp writes a time as RFC 3339 does, with milliseconds; none is "".
func stamp(at time.Time) string { return control.At(at).String() }

// reason says in one line why a task was not enqueued. It is empty for a duplicate.
func reason(r queue.Result, err error) string {
	if invalid, ok := errors.AsType[*queue.InvalidError](r.Err); ok {
		return invalid.Reasons()
	}
	if e, ok := errors.AsType[*cli.Error](err); ok {
		return e.What
	}
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}
