// Package events reports what an operator wants to know at once: that a quota is half used, nearly used or
// exhausted, that an API paused a scope or had a limit cut, that a process does not dispatch waiting
// tasks, and that processes have different limits. Events go to a log, to a function and to a webhook.
//
//	limits, err := worker.New(rdb, worker.Config{Events: &events.Config{
//		OnEvent: func(e events.Event) { page(e.Text) },
//		Webhook: &events.Webhook{URL: "https://example.com/hooks/headway", Secret: secret},
//	}})
//
// An event is reported once, however many processes notice it: a key in Redis keeps the others quiet for
// a while. If Redis does not answer, each process reports for itself. Nothing polls for events: they
// follow from what decisions, answers and dispatches return. docs/events.md says how late each may be.
package events
