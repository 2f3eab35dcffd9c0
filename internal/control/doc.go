// Package control answers what a person asks about running limits: where a task is and what it waits for, who waits in a scope,
// who paused it. The program worker prints its answers, and a page shows the same. It prints nothing itself.
//
// Answers are structs whose JSON is described in docs/json.md. They change nothing in Redis.
package control
