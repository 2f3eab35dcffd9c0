package worker

import "context"

// Attempt returns which attempt of its task a handler runs, and how many the task has at most: 1 and 26
// for the first of a task with 25 retries. On the last attempt both are the same. asynq.GetRetryCount and
// asynq.GetMaxRetry do not say so for tasks of package queue, whose max retry in asynq is without a bound.
// To be limited uses up no attempt. A task that MoveTo has moved counts anew, up to the attempts that it
// had left. ctx is the context of the handler; outside of a handler both are 0. It does no I/O.
func Attempt(ctx context.Context) (attempt, budget int) {
	r, is := ctx.Value(runKey{}).(*taskRun)
	if !is {
		return 0, 0
	}
	budget = r.job.allowed + 1
	if r.job.own {
		budget = r.job.budget + 1
	}
	return min(r.job.retried+1, budget), budget // asynq also counts a worker that died before the start
}
