// Package limitsyaml reads and writes limits.yaml, the form of a policy for people and in Redis.
//
//	rules, err := limitsyaml.Load("limits.yaml")
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//
// Package policy checks the limits; this package adds each fault's place in the file. Single rules,
// and the values of other fields, can be read and written in their form in the file, for programs that
// change limits.
package limitsyaml
