// Package schedule enqueues recurring tasks from a schedules.yaml: each run of each schedule once,
// however many processes run it.
//
// asynq has a Scheduler, and a PeriodicTaskManager above it. Alone they are not enough: every process
// with a Scheduler enqueues a copy of its own, and a run that comes due while no process is up is
// lost, because there is no record of past runs. This package uses what they are built on: robfig/cron
// parses the expressions (package wallclock), and asynq refuses a second task with the same id.
//
// # How a run is enqueued once
//
// Every process with a [Runner] does the same. It asks Redis for the time and, for each schedule, for
// the time up to which all runs have been enqueued: the schedule's record. It enqueues the runs
// between the two and then advances the record, which never goes back. The id of a run's task consists
// of the schedule's name and the run's time. Of many processes one therefore enqueues it, and the
// others find the id taken. The id stays taken for a day after the task has succeeded, for processes
// that are late. If a process dies between the two steps, it has not advanced the record, and any
// other process sees that the run is due.
//
// Only Redis's clock determines when a run is due: a process whose clock is wrong runs neither early
// nor twice.
package schedule
