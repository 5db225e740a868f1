# What other tests of this binary have of a later commit.
sed -i 's/&cluster\.0 /cluster.nodes() /' backend-redis/tests/server/shapes.rs
sed -i 's/topology::{Cluster, /topology::{/; s/servers::TestResult/servers::{Cluster, TestResult}/' backend-redis/tests/server/odd.rs
