// Package schedule enqueues tasks that come again and again, by a
// schedules.yaml: each run of each schedule once, however many processes run it.
//
// asynq has a Scheduler, and a PeriodicTaskManager above it. Alone they do not
// serve: every process that runs one enqueues a copy of its own, and a run that
// comes due while none lives is lost, since nothing is kept of what was done.
// What they are built on is used here as well: robfig/cron reads the
// expressions (package wallclock), and asynq refuses a second task of the same
// id.
//
// # How a run is enqueued once
//
// Every process with a [Runner] does the same. It asks Redis for the time and,
// by schedule, for the time up to which all runs have been enqueued: its record.
// It enqueues the runs between the two and then moves the record on, which never
// goes back. The id of a run's task is made of the schedule's name and the run's
// time, so that of many processes one enqueues it and the others find the id
// taken; it stays taken for a day after the task has succeeded, for those that
// are late. A process that dies between the two steps has moved no record, and
// any other one sees that the run is due.
//
// Redis's clock alone says what is due: a process whose clock is wrong neither
// runs early nor twice.
package schedule
