# What other tests of this binary have of a later commit.
cd backend-redis/tests/server
sed -i 's/&cluster\.0 /cluster.nodes() /' odd.rs shapes.rs
sed -i 's/topology::{Cluster, /topology::{/; s/servers::TestResult/servers::{Cluster, TestResult}/' odd.rs
