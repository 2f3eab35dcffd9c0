// Package schedule enqueues recurring tasks from a schedules.yaml: each run of each schedule once, however many processes run it.
//
// asynq's Scheduler is not enough: every process with one enqueues a copy of its own, and a run that comes due while no process
// is up is lost, because there is no record of past runs. This package uses what it is built on: robfig/cron parses the
// expressions (package wallclock), and asynq refuses a second task with the same id.
//
// # How a run is enqueued once
//
// Every process with a [Runner] does the same. It asks Redis for the time and, for each schedule, for the time up to which all
// runs have been enqueued: the schedule's record. It enqueues the runs between the two and then advances the record, which never
// goes back. A run's task has an id made of the schedule's name and the run's time, so only one process enqueues it. The id stays
// taken for a day after the task has succeeded, for processes that are late. A process that dies between the two steps has not
// advanced the record, so any other process sees that the run is due.
//
// Only Redis's clock determines when a run is due: a process whose clock is wrong runs neither early nor twice.
package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/wallclock"
)

// CatchUp selects what happens to runs that were missed while no process was up or Redis was down. A
// run that is up to a minute late is not missed.
type CatchUp string

// The ways to catch up.
const (
	CatchUpNone CatchUp = "none" // missed runs are skipped
	CatchUpLast CatchUp = "last" // only the latest of the due runs is enqueued
	CatchUpAll  CatchUp = "all"  // all are enqueued, at most the latest 100
)

const (
	maxCatchUp = 100
	late       = time.Minute // a later run counts as missed

	// remember is how long a run's id stays taken after its task succeeded. It bounds how long a process
	// may take from reading the record to enqueuing.
	remember = 24 * time.Hour
)

// Schedule is a task and when it runs. [Parse] and [Load] create it. It must not be changed, and is safe for concurrent use.
type Schedule struct {
	Name string
	// Cron and Timezone are the values of the file. Timezone is "UTC" if the file has none.
	Cron, Timezone string
	// Jitter is the maximum random delay of a run, in whole seconds.
	Jitter  time.Duration
	CatchUp CatchUp
	// Task is the task that each run enqueues, apart from the fields that [Schedule.TaskFor] sets.
	Task queue.Task

	runs   *wallclock.Schedule
	places map[string]diag.Place // of the task's fields, for Check
}

// Next returns the first run after t, in the schedule's time zone, without jitter. It is the zero time
// if there is none within eight years.
func (s *Schedule) Next(t time.Time) time.Time { return s.runs.Next(t) }

// Start returns when a run may start: up to Jitter after it, in whole seconds. Every process computes the same start.
func (s *Schedule) Start(run time.Time) time.Time {
	seconds := uint64(s.Jitter / time.Second)
	if seconds == 0 {
		return run
	}
	sum := sha256.Sum256([]byte(s.id(run)))
	return run.Add(time.Duration(binary.BigEndian.Uint64(sum[:])%(seconds+1)) * time.Second)
}

// TaskFor returns the task of a run, with an id that no other run has. Its Delay is the time until
// Start by this machine's clock, and at most the run's jitter, whatever that clock shows.
func (s *Schedule) TaskFor(run time.Time) queue.Task {
	t := s.Task
	t.ID = s.id(run)
	t.Remember = remember
	// asynq keeps whole seconds and package queue rounds up to the next one: half a second less ends at
	// Start and not one second later.
	start := s.Start(run)
	t.Delay = max(0, min(start.Sub(run), time.Until(start))-time.Second/2)
	return t
}

// id keeps the name unchanged: the time is what follows the last colon.
func (s *Schedule) id(run time.Time) string {
	return "schedule:" + s.Name + ":" + strconv.FormatInt(run.Unix(), 10)
}

// member returns the name of the schedule's record. It changes with the expression and the zone, so
// that a new expression is not late for runs that it never had.
func (s *Schedule) member() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", strings.Join(strings.Fields(s.Cron), " "), s.Timezone))
	return hex.EncodeToString(sum[:8]) + ":" + s.Name
}

// due returns the runs after done and up to now that are to be enqueued, oldest first. It searches
// from the latest one back, so that it is quick after the longest outage.
func (s *Schedule) due(done, now time.Time) (runs []time.Time) {
	if next := s.runs.Next(done); next.IsZero() || next.After(now) {
		return nil
	}
	most := maxCatchUp
	if s.CatchUp == CatchUpLast {
		most = 1
	}
	for run := s.runs.Prev(now); run.After(done) && len(runs) < most; run = s.runs.Prev(run.Add(-1)) {
		if s.CatchUp == CatchUpNone && now.Sub(run) > late {
			break
		}
		runs = append(runs, run)
	}
	slices.Reverse(runs)
	return runs
}

// count returns the number of runs after done and up to now. It takes up to a second for a year of minutes.
func (s *Schedule) count(done, now time.Time) (n int) {
	for run := s.runs.Next(done); !run.IsZero() && !run.After(now); run = s.runs.Next(run) {
		n++
	}
	return n
}
