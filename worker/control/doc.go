// Package control answers questions of people about running limits: where a task is and what it waits
// for, which tasks wait in a scope, and who paused it. The program worker prints the answers, and
// package page shows them. The package prints nothing itself.
//
// Answers are structs, and docs/json.md describes their JSON. They change nothing in Redis.
//
// The package also acts for people: Service.Apply changes the limits, and Service.ApplyTasks waiting
// tasks. Each call names the Actor that it is for. The rights of actors are checked here and nowhere
// else; the error is a *ForbiddenError.
//
// Its exported names may change in any version.
package control
