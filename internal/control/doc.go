// Package control answers what a person asks about running limits: where a task is and what it waits for, who waits in a scope,
// who paused it. The program worker prints its answers, and a page shows the same. It prints nothing itself.
//
// Answers are structs whose JSON is described in docs/json.md. They change nothing in Redis.
//
// It also does what a person has done with running limits: Service.Apply changes the limits. Every answer and every action names the
// Actor that it is for, whose rights are checked here, and nowhere else: a *ForbiddenError says what it may not.
package control
